"""How a kernel is launched: plain tables instead of autotuning, which needs a GPU to load, and
the checks all launchers share. Imports no triton, so reading it costs a CPU process nothing."""

from typing import Any

import torch

MAX_STORE_ELEMENTS = 1024
"""elements of one row's K that one program of store_kv copies at a time"""


def store_kv_tile(num_kv_heads: int, head_dim: int) -> tuple[int, int]:
    """(heads, elements) of one program's tile, both powers of two; the rest is masked."""
    width = next_power_of_two(head_dim)
    heads = min(next_power_of_two(num_kv_heads), max(1, MAX_STORE_ELEMENTS // width))
    return heads, width


def num_warps(num_elements: int) -> int:
    """Warps for a program that moves this many elements: four per thread, 1 to 8 warps."""
    return min(8, max(1, num_elements // 128))


def overlap_options(overlap: bool) -> dict[str, Any]:
    """Of a launch; Triton's interpreter does not know the option at all."""
    return {"launch_pdl": True} if overlap else {}


def check_pool(kv_pool: torch.Tensor) -> None:
    """ValueError unless it is a KV pool."""
    if kv_pool.dim() != 6 or kv_pool.shape[2] != 2 or not kv_pool.is_contiguous():
        raise ValueError(f"kv_pool {tuple(kv_pool.shape)} is not a contiguous six-dimensional pool")


def layer_offset(kv_pool: torch.Tensor, layer: int) -> int:
    """The element of a block where a layer begins; ValueError if there is no such layer."""
    if not 0 <= layer < kv_pool.shape[1]:
        raise ValueError(f"layer {layer} of {kv_pool.shape[1]}")
    return layer * kv_pool.stride(1)


def ceil_div(number: int, divisor: int) -> int:
    """As triton.cdiv, which serves kernels too and takes the host ten times as long."""
    return -(-number // divisor)


def next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def check_same_device(*tensors: torch.Tensor) -> None:
    """ValueError unless all tensors are on one device."""
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"tensors on {device} and {tensor.device}, need one device")


def check_interpretable(*tensors: torch.Tensor) -> None:
    """TypeError for bfloat16: the interpreter keeps it as integers and computes nonsense."""
    if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
        raise TypeError("Triton's interpreter cannot compute in bfloat16; use float32 or float16")
