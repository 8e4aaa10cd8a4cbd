"""A prefill and a decode transport whose pools lie in the memory of GPUs: two of them if there are
two."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from kernels.sharing.copy_batch import as_copies, copy_batch
from shared.engine.handover.shared_pool import SharedPool
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.copies import Mark
from shared.mover.device_copies import DeviceCopies
from shared.mover.links.link import End
from shared.mover.links.nccl import NcclLink
from shared.mover.mover import Mover, Outside
from shared.protocol import Attempt
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.blocks.payloads import payloads_of
from shared.transfer.ways.nccl import nccl_transport
from shared.transfer.ways.nixl import nixl_transport
from shared.transfer.ways.tcp import tcp_transport
from tests.support.fakes.faulty_agent import FaultyAgent
from tests.support.fakes.faulty_transport import (
    FaultPlan,
    FaultyTerms,
    faulty_mapped_transport,
)
from tests.support.fakes.strikes import Strikes
from tests.support.pairs.transfer_pair import NUM_BLOCKS, Kind, Pair, Side, until

LAYOUT = KVLayout("four layers", "bfloat16", 4, 2, 8, 128, 64)
"""of 1 MiB"""
ARENA_BYTES = 4 * LAYOUT.block_bytes


class HalvingCopies(DeviceCopies):
    """The first block of each copy goes in two halves, with `half_read` between them."""

    def __init__(self, pool: SharedPool, memory: KVMemory, strikes: Strikes) -> None:
        super().__init__(pool.tensor, memory, KVShare(memory.layout))
        self._strikes = strikes

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        self._strikes.read()
        address = self._sources[source].memories[0].address
        copies = self._pieces(address, source_blocks[:1], blocks[:1], groups)
        to, at, size = (int(value) for value in copies[:, 0])
        self._copy((to, at, size // 2))
        self._strikes.half_read()
        self._copy((to + size // 2, at + size // 2, size - size // 2))
        if not source_blocks[1:]:
            return self.digests(blocks, groups, after)
        rest = super().fetch(source, source_blocks[1:], blocks[1:], groups, after)
        return np.concatenate([self.digests(blocks[:1], groups, None), rest])

    def _copy(self, piece: tuple[int, int, int]) -> None:
        with torch.cuda.stream(self._stream):
            copy_batch(as_copies([piece]), self._stream.cuda_stream)
            self._stream.synchronize()


class StruckLink(NcclLink):
    """What it received lies in its room when the faults strike: a link's bytes that nobody takes
    keep their GPU busy, and the strikes wait for that GPU."""

    def __init__(self, strikes: Strikes, end: End, host: str, device: torch.device) -> None:
        super().__init__(end, host, device)
        self._strikes = strikes
        self._num_received = 0

    def receive(self, rows: torch.Tensor) -> None:
        super().receive(rows)
        self._num_received += 1
        if self._num_received > 1:  # the first is the probe
            self._strikes.read()
            self._strikes.half_read()


class DeviceSide(Side):
    """One worker's pool on a GPU, its transport and faults."""

    def __init__(  # of the parent nothing is kept but what it does with its parts
        self, kind: Kind, device: int, pair: Pair, incarnation: str, source: Side | None
    ) -> None:
        self.memory = KVMemory.create(LAYOUT, NUM_BLOCKS, ARENA_BYTES)
        self.incarnation = incarnation
        self.plan = FaultPlan()
        self.released: list[Attempt] = []
        self.changed = asyncio.Event()
        self.agents: list[FaultyAgent] = []
        self.terms = FaultyTerms(self.plan, pair.limits)
        with torch.cuda.device(device):
            self.pool = SharedPool(LAYOUT, NUM_BLOCKS, mapped=kind != "nixl")
            self.pool.write_probe(self.memory.probe)
            self._bytes = self.pool.tensor.flatten(1).view(torch.uint8)
            torch.cuda.synchronize()
        strikes = Strikes(self.terms, (source or self).terms)
        ours, theirs = data_socket_pair()
        self.copies = HalvingCopies(self.pool, self.memory, strikes)
        digests = DeviceCopies(self.pool.tensor, self.memory, KVShare(LAYOUT))
        outside = Outside(partial(FaultyAgent, strikes, self.agents), partial(StruckLink, strikes))
        Mover(theirs, self.copies, digests, outside=outside).start()
        self.mover = MoverClient(ours)
        self._shown = self.pool.descriptor()
        if kind == "mapped":
            assert self._shown is not None
            shown = ShownPool(self.memory, [self._shown])
            folder = Path(pair._folder.name)
            self.transport = faulty_mapped_transport(
                shown, incarnation, self.mover, folder, self.terms
            )
        elif kind == "nixl":
            self.transport = nixl_transport(self.memory, incarnation, self.mover, terms=self.terms)
        elif kind == "nccl":
            self.transport = nccl_transport(self.memory, incarnation, self.mover, terms=self.terms)
        else:
            self.transport = tcp_transport(
                self.memory,
                incarnation,
                digester=self.mover,
                payloads=payloads_of(self.memory, self.mover),
                terms=self.terms,
            )
        self.transport.on_release = self._release

    async def close(self) -> None:
        """AssertionError if a pool stays mapped."""
        await super().close()
        if self._shown is not None:
            os.close(self._shown)
        await until(lambda: not self.copies._sources)

    def write(self, block_id: int, written: bytes) -> None:
        self._bytes[block_id].copy_(torch.frombuffer(bytearray(written), dtype=torch.uint8))
        torch.cuda.synchronize(self._bytes.device)

    def read(self, block_id: int) -> bytes:
        return self._bytes[block_id].cpu().numpy().tobytes()


class DevicePair(Pair):
    """`p` serves on the first GPU, `d` pulls on the last."""

    def side(self, incarnation: str, source: Side | None = None) -> DeviceSide:
        """Of the kinds mapped, nixl, nccl and tcp."""
        device = torch.cuda.device_count() - 1 if source else 0
        return DeviceSide(self.kind, device, self, incarnation, source)
