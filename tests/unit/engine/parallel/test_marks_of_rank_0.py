"""What `shared.engine.handover.marks` rests on: rank 0 begins no layer before every rank has
written the layer before it, and ends no step before every rank has written the last one."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from shared.engine.layers import operations
from shared.engine.layers.kv_cache import store_kv
from shared.engine.loading.rank import build_rank
from shared.engine.models import gpt2
from shared.engine.scheduling.batch import HostBatch, Section
from shared.model.checkpoint import load_checkpoint
from tests.support.fakes.thread_ranks import Shelf, ThreadRanks
from tests.support.models.tiny_model import write_checkpoint
from tests.support.settings import settings_with
from tests.unit.engine.parallel.test_parallel_model import MODELS

BLOCK_SIZE = 8


def _step(num_tokens: int, num_logits_rows: int) -> HostBatch:
    return HostBatch.of(
        {
            Section.INPUT_IDS: np.arange(2, 2 + num_tokens),
            Section.POSITIONS: np.arange(num_tokens),
            Section.SLOT_MAPPING: np.arange(num_tokens),
            Section.CONTEXT_LENS: [num_tokens],
            Section.QUERY_LENS: [num_tokens],
            Section.LOGITS_ROWS: np.arange(num_tokens - num_logits_rows, num_tokens),
            Section.COPIES: (),
            Section.BLOCK_TABLES: np.arange(-(-num_tokens // BLOCK_SIZE)).reshape(1, -1),
        }
    )


class SlowStore:
    """Stores, later the higher the rank; `written` has each (rank, layer) that has been stored."""

    def __init__(self) -> None:
        self.local = threading.local()
        """its rank"""
        self.written: set[tuple[int, int]] = set()

    def __call__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        kv_pool: torch.Tensor,
        layer: int,
        slots: torch.Tensor,
    ) -> None:
        time.sleep(0.01 * self.local.rank)
        store_kv(keys, values, kv_pool, layer, slots)
        self.written.add((self.local.rank, layer))


@pytest.mark.parametrize("num_logits_rows", [0, 1])
@pytest.mark.parametrize("num_tokens", [1, 8, 17])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_all_ranks_have_written_what_rank_0_has_passed(
    name: str,
    size: int,
    num_tokens: int,
    num_logits_rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(1)
    write_checkpoint(tmp_path, MODELS[name])
    settings = settings_with(
        model=str(tmp_path),
        device="cpu",
        tp=size,
        block_size=BLOCK_SIZE,
        kv_blocks=16,
        max_model_len=64,
    )
    checkpoint = load_checkpoint(str(tmp_path))
    store = SlowStore()
    monkeypatch.setattr(operations, "store_kv", store)
    monkeypatch.setattr(gpt2, "store_kv", store)
    shelf = Shelf(size)
    batch = _step(num_tokens, num_logits_rows)
    early: list[int] = []
    missing: list[tuple[int, int]] = []

    def run(rank: int) -> None:
        store.local.rank = rank
        parts = build_rank(*settings.of_engine, checkpoint, ThreadRanks(rank, shelf))
        store.written.clear()
        shelf.exchange(rank, torch.zeros(1))
        num_layers = checkpoint.config.num_layers

        def on_stored(layer: int) -> None:
            before = {(other, layer - 1) for other in range(size)} if layer else set()
            early.extend([layer] * bool(before - store.written))

        parts.runner.run(batch, None, None if rank else on_stored)
        if not rank:
            every = {(other, layer) for other in range(size) for layer in range(num_layers)}
            missing.extend(every - store.written)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join(30)
    assert not early
    assert not missing
