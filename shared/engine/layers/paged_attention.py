"""Attention by the paged kernels: one for sequences with one new token, one for prompt chunks.

A step's decoding sequences stand first, so its rows split in two. `begin` plans both parts, once
per step for all layers with the same window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.attention.decode_plan import DecodePlan
from kernels.attention.decode_tiles import decode_tile
from kernels.attention.paged_decode import paged_decode
from kernels.attention.paged_prefill import paged_prefill
from kernels.attention.prefill_plan import PrefillPlan, prefill_tile
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.device_traits import DeviceTraits
from shared.engine.layers.row_sizes import next_size


@dataclass(frozen=True)
class StepPlan:
    """How the sequences of a step are shared out among programs, for one window."""

    num_decoding: int
    """leading sequences with one row each"""
    decode: DecodePlan | None
    prefill: PrefillPlan | None


class PagedAttention:
    """See shared.engine.layers.attention.Attention; `begin` comes before the first layer of a
    step."""

    def __init__(self, num_heads: int, windows: Sequence[int], traits: DeviceTraits) -> None:
        """`windows`: of all layers, repeats allowed."""
        self._num_heads = num_heads
        self._windows = sorted(set(windows))
        self._traits = traits
        self._plans: dict[int, StepPlan] = {}
        """by window, of the current step"""

    def allocate(self, context_lens: torch.Tensor, kv_pool: torch.Tensor) -> dict[int, DecodePlan]:
        """Plans by window for steps that decode as many sequences as i32[B] context_lens, which
        they read each time they are filled."""
        traits = self._traits
        # Not a tile for every number of sequences: each is compiled before the first request.
        num_rows = next_size(context_lens.shape[0])
        tile = decode_tile(num_rows, kv_pool, traits.num_multiprocessors, traits.overlaps)
        return {
            window: DecodePlan.allocate(context_lens, self._num_heads, kv_pool, tile, window)
            for window in self._windows
        }

    def begin(
        self,
        batch: BatchTensors,
        kv_pool: torch.Tensor,
        decode_plans: dict[int, DecodePlan] | None = None,
    ) -> None:
        """Plan a step. `decode_plans`: from `allocate`, where all its sequences decode."""
        split = len(batch.query_lens)
        if decode_plans is None:
            split = num_decoding(batch.query_lens)
            decode_plans = self.allocate(batch.context_lens[:split], kv_pool) if split else {}
        self._plans.clear()
        for window in self._windows:
            decode = decode_plans.get(window)
            if decode is not None:
                decode.fill()
            prefill = None
            if split < len(batch.query_lens):
                prefill = PrefillPlan.build(
                    batch.query_lens[split:],
                    batch.context_lens_host[split:],
                    self._num_heads,
                    kv_pool,
                    window,
                    prefill_tile(kv_pool, self._traits.capability),
                )
            self._plans[window] = StepPlan(split, decode, prefill)

    def __call__(
        self,
        queries: torch.Tensor,
        kv_pool: torch.Tensor,
        layer: int,
        batch: BatchTensors,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        plan = self._plans[window]
        split = plan.num_decoding
        output = queries.new_empty(queries.shape)
        tables = batch.block_tables
        if plan.decode is not None:
            paged_decode(
                queries[:split], kv_pool, layer, tables[:split], plan.decode, scale, output[:split]
            )
        if plan.prefill is not None:
            paged_prefill(
                queries[split:], kv_pool, layer, tables[split:], plan.prefill, scale, output[split:]
            )
        return output


def num_decoding(query_lens: Sequence[int]) -> int:
    """How many sequences with one row stand first."""
    for index, length in enumerate(query_lens):
        if length != 1:
            return index
    return len(query_lens)
