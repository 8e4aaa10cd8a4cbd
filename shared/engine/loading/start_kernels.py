"""The kernels that a GPU worker's start launches: its warm-up, on a device that is not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernels.digest.block_digest import NUM_PIECES, Row, block_digests
from kernels.launching.listing import listing
from kernels.peer.inbox import PeerInbox
from kernels.peer.reduce import SIZES
from shared.engine.layers.kv_cache import TORCH_DTYPES, device_pool
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.layers.shard import Shard
from shared.engine.loading.device_form import DeviceForm, DeviceModel
from shared.engine.loading.warm_up import warm_up
from shared.engine.parallel.peer import MAX_BYTES, PeerRanks
from shared.engine.parallel.ranks import Ranks, SingleRank
from shared.kv.share import KVShare
from shared.model.checkpoint import Checkpoint

META = torch.device("meta")
NUM_BLOCKS = 2
"""of a pool that has no memory"""
ADDRESS = 2**40
"""of memory of a GPU: like all of them in size and alignment"""


class AbsentWeights(RandomWeights):
    """Tensors of the right form that hold nothing."""

    def _drawn(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)


class AbsentRanks:
    """One of several ranks, none of which is there: see shared.engine.parallel.ranks.Ranks. The
    first launches the sums of all of them, which are another kernel on each."""

    def __init__(self, rank: int, size: int, *, overlap: bool) -> None:
        self.rank = rank
        self.size = size
        self._all: list[PeerRanks] = []
        self._sums: set[torch.Size] = set()
        """shapes that were launched; layers repeat them"""
        if size in SIZES and rank == 0:
            addresses = [number * ADDRESS for number in range(1, size + 1)]
            for number in range(size):
                inbox = PeerInbox.over(number, addresses, MAX_BYTES[size], META)
                self._all.append(PeerRanks(SingleRank(), inbox, None, overlap=overlap))

    def reduce(self, partial: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if partial.shape not in self._sums:
            self._sums.add(partial.shape)
            for ranks in self._all:
                ranks.reduce(partial, residual)
        return torch.empty_like(residual)

    def gather(self, logits: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return output

    def broadcast(self, ids: torch.Tensor) -> torch.Tensor:
        return ids

    def least(self, number: int) -> int:
        return number

    def close(self) -> None:
        return None


def start_kernels(form: DeviceForm) -> dict[str, Callable[[], Any]]:
    """What compiles each, by its key in Triton's cache; for a process of its own, see `listing`."""
    # Torch works out the form of this product in Python, which takes as long as all the rest.
    forms = torch.library.Library("aten", "IMPL", "Meta")
    forms.impl("addmm_", lambda rows, first, second, **_: rows, allow_override=True)
    size = form.share.size
    with listing(form.traits.capability) as kernels:
        for rank in range(min(2, size)):  # the first adds biases, all others are alike
            ranks = AbsentRanks(rank, size, overlap=form.traits.overlaps)
            _launch(form, ranks if size > 1 else SingleRank())
        _launch_digests(form.share)
    return kernels


def _launch(form: DeviceForm, ranks: Ranks) -> None:
    checkpoint = Checkpoint(Path(), "", form.config, (), "")
    shard = Shard(form.config, ranks.rank, ranks.size)
    dtype, block_size = TORCH_DTYPES[form.layout.dtype], form.layout.block_size
    with AbsentWeights(checkpoint, dtype, META, shard) as reader:
        model = DeviceModel(form, reader, ranks)
    runner = model.runner(device_pool(form.layout, NUM_BLOCKS, META), eager=True)
    warm_up(runner, form.sampler(META), form.max_tokens, form.length, block_size)


def _launch_digests(share: KVShare) -> None:
    """Of the mover."""
    pool = device_pool(share.layout, NUM_BLOCKS, META).flatten(1).view(torch.uint8)
    bounds = torch.empty(2, dtype=torch.int64, device=META)
    found = bounds.new_empty(1, 1, NUM_PIECES)
    block_digests(pool, bounds, 0, bounds[:1], found, Row.of_bytes(*share.row))
