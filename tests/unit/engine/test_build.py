"""An engine from settings: its pool, threads, devices, and what the start refuses."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.engine.layers import matrices as layers
from shared.engine.layers.kv_cache import copy_blocks, pool_of
from shared.engine.loading.devices import resolve_device, set_threads
from shared.engine.loading.rank import check_arithmetic
from shared.errors import MissingError, SettingsError
from shared.kv.memory import KVMemory
from shared.model.checkpoint import kv_layout
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, model_of, write_checkpoint
from tests.support.oracles.engine_integrity import check_engine
from tests.support.settings import settings_with

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_pool_is_the_memory_the_io_process_maps(tmp_path: Path) -> None:
    layout = kv_layout(write_checkpoint(tmp_path, TINY), "float32", 16)
    memory = KVMemory.create(layout, 3)
    pool = pool_of(memory)
    assert pool.shape == (3, 2, 2, 2, 16, 16)
    pool[1] = torch.arange(layout.block_bytes // 4, dtype=torch.float32).view(pool.shape[1:])
    assert bytes(memory.block(1)) == pool[1].numpy().tobytes()
    assert not any(memory.block(2))
    copy_blocks(pool, torch.tensor([[1, 2]]))
    assert memory.block(2) == memory.block(1)


def test_an_engine_takes_memory_and_length_from_settings(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    engine = built_engine(
        settings_with(model=str(tmp_path), device="cpu", kv_blocks=9, block_size=8), "prefill"
    )
    assert (engine.memory.num_blocks, engine.memory.layout.block_size) == (9, 8)
    assert engine.load().free == 9
    check_engine(engine)


@pytest.mark.parametrize(("num_blocks", "limited"), [(4, True), (4096, False)])
def test_a_pool_that_shortens_the_context_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_blocks: int, limited: bool
) -> None:
    write_checkpoint(tmp_path, TINY)
    with caplog.at_level(logging.WARNING):
        settings = settings_with(model=str(tmp_path), device="cpu", kv_blocks=num_blocks)
        length = built_engine(settings, "decode").max_model_len
    told = "longest sequence: 64 tokens (limited by the KV pool of 4 blocks; the model's is "
    assert (told in caplog.text, length == 64) == (limited, limited)


def test_more_threads_say_what_they_give_up(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        set_threads(1, CPU)
        assert not caplog.records
        set_threads(2, CPU)
    assert "--threads 1 keeps them exact" in caplog.text
    assert torch.get_num_threads() == 2


def test_arithmetic_that_depends_on_the_batch_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    model = model_of(write_checkpoint(tmp_path, TINY), 64)
    assert check_arithmetic(model)
    monkeypatch.setattr(layers, "MIN_ROWS", 2)
    assert not check_arithmetic(model)
    assert "depend on their number of rows" in caplog.text


def test_devices() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("tpu", "mps", "cuda:x", ""):
        with pytest.raises(SettingsError, match="--device"):
            resolve_device(name)
    with pytest.raises(MissingError, match="torch sees"):
        resolve_device("cuda:63")


def test_a_cpu_engine_imports_no_triton(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    program = (
        "import sys\n"
        "from tests.support.models.built_engine import built_engine\n"
        "from tests.support.settings import settings_with\n"
        "from shared.engine.scheduling.sequence import SequenceSpec\n"
        "from shared.protocol import Attempt, Sampling, Work\n"
        f"settings = settings_with(model={str(tmp_path)!r}, device='cpu', kv_blocks=4)\n"
        "engine = built_engine(settings, 'decode')\n"
        "sampling = Sampling(max_tokens=3, temperature=0)\n"
        "work = Work(Attempt('r', 0), (5, 6), 2, bytes(32), sampling)\n"
        "engine.add(SequenceSpec(work, (), 'full', 'agg'))\n"
        "while engine.has_work:\n"
        "    engine.step()\n"
        "sys.exit('triton' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603
