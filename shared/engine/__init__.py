"""The engine of a worker: paged KV, prefix cache, scheduler, models, sampler; knows no network."""
