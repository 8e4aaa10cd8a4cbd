"""An engine over the fake runner, with host memory besides its pool."""

import os

import torch

from shared.engine.engine import Engine
from shared.engine.handover.hand_overs import HandOvers
from shared.engine.handover.marks import host_marks
from shared.engine.handover.staging import HostStaging
from shared.protocol import Sampling
from tests.unit.engine.fake_runner import LAYOUT, FakeRunner, ForgetfulMemory, fake_engine

SAMPLING = Sampling(max_tokens=7, temperature=0.7, seed=11, logprobs=1)
MAX_LENGTH = 64


def stage(
    engine: Engine,
    runner: FakeRunner,
    staging_class: type[HostStaging] = HostStaging,
    *,
    keep_bytes: int,
) -> HostStaging:
    """Give a new engine other memory than its runner's for transfers to see; it is garbage."""
    pool = engine._pool
    memory = ForgetfulMemory.create(LAYOUT, pool.num_blocks)
    memory.blocks[:] = os.urandom(len(memory.blocks))
    engine.memory, pool.generations = memory, memory.generations
    staging = staging_class(
        memory,
        torch.from_numpy(runner.kv),
        bounce_bytes=2 * LAYOUT.block_bytes,
        keep_bytes=keep_bytes,
    )
    engine.hand_overs = HandOvers(pool, host_marks(memory.layout), staging)
    return staging


class Worker:
    """An engine whose pool is not the memory that transfers see."""

    def __init__(
        self,
        role: str,
        staging_class: type[HostStaging] = HostStaging,
        *,
        num_blocks: int = 32,
        keep_bytes: int = 2**20,
        prefix_cache: bool = True,
    ) -> None:
        self.engine, runner = fake_engine(
            num_blocks, role=role, budget=8, max_model_len=MAX_LENGTH, prefix_cache=prefix_cache
        )
        self.staging = stage(self.engine, runner, staging_class, keep_bytes=keep_bytes)
        self.memory = self.engine.memory
        self.device = torch.from_numpy(runner.kv)
        """every bit set where nothing was written: no float is one"""

    def device_bytes(self, block: int) -> bytes:
        return self.device[block].numpy().tobytes()
