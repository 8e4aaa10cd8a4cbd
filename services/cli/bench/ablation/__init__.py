"""`baton bench ablation`: what batching, a KV cache, a prefix cache and CUDA graphs each bring."""
