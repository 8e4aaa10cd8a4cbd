"""One model on several GPUs: each rank, a process of its own, holds a part of every layer."""
