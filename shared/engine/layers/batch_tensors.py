"""What one step feeds to a model, as tensors on its device."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class BatchTensors:
    """One step's input to the model. T tokens, S sequences, R rows to sample, C copies."""

    input_ids: torch.Tensor
    """i64[T]"""
    positions: torch.Tensor
    """i64[T], index of each token in its sequence"""
    slot_mapping: torch.Tensor
    """i64[T]"""
    context_lens: torch.Tensor
    """i32[S], KV length after this step"""
    block_tables: torch.Tensor
    """i32[S, widest table]; unused entries are 0 and must not be read"""
    logits_rows: torch.Tensor
    """i64[R], rows of T whose logits are wanted"""
    copies: torch.Tensor
    """i64[C, 2] of (src, dst) block ids: pool[dst] = pool[src] first of all; C is mostly 0"""
    query_lens: tuple[int, ...]
    """S ints on the host: tokens of each sequence in this step"""
    context_lens_host: tuple[int, ...]
    """context_lens on the host"""
