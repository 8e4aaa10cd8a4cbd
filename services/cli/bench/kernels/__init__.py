"""`baton bench kernels`: each kernel compared with its alternatives, on this GPU."""
