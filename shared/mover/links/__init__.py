"""Two-sided links between the movers of two workers: NCCL between GPUs, gloo between CPUs."""
