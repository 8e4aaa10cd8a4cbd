"""What the memory of a rank is used for, once it can serve.

weights   of the model
kv        the KV pool
step      what a GPU's steps hold: activations, sampling, captured graphs
others    the driver's context, communication, other processes; on a CPU the rest of this one
free      of a GPU
"""

from pathlib import Path

import torch

from shared.engine.handover.kv_pool import KVPool

STATUS = Path("/proc/self/status")
KIB = 1024


def memory_of_gpu(device: torch.device, weights_bytes: int, pool: KVPool) -> dict[str, int]:
    """All but `free` add up to what is in use, whoever uses it."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    kv_bytes = pool.tensor.nbytes
    by_torch = torch.cuda.memory_reserved(device) - weights_bytes
    if pool.shared is None:  # else the driver allotted it
        by_torch -= kv_bytes
    step_bytes = max(0, by_torch)
    return {
        "weights": weights_bytes,
        "kv": kv_bytes,
        "step": step_bytes,
        "others": max(0, total_bytes - free_bytes - weights_bytes - kv_bytes - step_bytes),
        "free": free_bytes,
    }


def memory_of_process(weights_bytes: int, pool: KVPool) -> dict[str, int]:
    """They add up to what this process holds; its pool is touched, so it holds all of that."""
    kv_bytes = pool.tensor.nbytes
    others_bytes = _resident_bytes() - weights_bytes - kv_bytes
    return {"weights": weights_bytes, "kv": kv_bytes, "others": max(0, others_bytes)}


def _resident_bytes() -> int:
    lines = STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("VmRSS:"))
