"""From settings to a model that is ready to run: device, weights, the KV pool's size."""
