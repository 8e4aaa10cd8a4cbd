"""What `baton bench engine` and `baton bench kernels` are made of."""
