"""What models are made of: weights, matrices, attention, RoPE, the KV pool's shape."""
