"""An engine over the fake runner, with host memory beside its pool."""

import os

import numpy as np
import torch

from shared.engine.block_pool import BlockPool
from shared.engine.engine import Engine
from shared.engine.kv_cache import pool_shape
from shared.engine.sampler import Sampler
from shared.engine.scheduler import Scheduler
from shared.engine.staging import HostStaging
from shared.protocol import Sampling
from tests.unit.engine.fake_runner import BLOCK_SIZE, LAYOUT, FakeRunner, ForgetfulMemory

SAMPLING = Sampling(max_tokens=7, temperature=0.7, seed=11, logprobs=1)
MAX_LENGTH = 64


class Worker:
    """An engine whose pool is not the memory that transfers see. Both start as garbage."""

    def __init__(
        self,
        role: str,
        staging_class: type[HostStaging] = HostStaging,
        *,
        num_blocks: int = 32,
        keep_bytes: int = 2**20,
        prefix_cache: bool = True,
    ) -> None:
        self.memory = ForgetfulMemory.create(LAYOUT, num_blocks)
        self.device = torch.full(pool_shape(LAYOUT, num_blocks), torch.nan)
        self.memory.blocks[:] = os.urandom(len(self.memory.blocks))
        runner = FakeRunner(num_blocks)
        runner.kv = self.device.numpy().view(np.int64).reshape(runner.kv.shape)
        pool = BlockPool(num_blocks, BLOCK_SIZE, self.memory.generations, prefix_cache=prefix_cache)
        scheduler = Scheduler(
            pool, max_num_batched_tokens=8, max_num_seqs=4, max_model_len=MAX_LENGTH
        )
        self.staging = staging_class(
            self.memory, self.device, bounce_bytes=2 * LAYOUT.block_bytes, keep_bytes=keep_bytes
        )
        self.engine = Engine(
            runner,
            scheduler,
            Sampler(),
            self.memory,
            "prefill" if role == "prefill" else "decode",
            self.staging,
        )

    def device_bytes(self, block: int) -> bytes:
        return self.device[block].numpy().tobytes()
