"""What an engine says of itself once a second: every gauge, and the memory it is told of."""

from pathlib import Path

import pytest

from shared.engine.running.gauges import unused_share
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling, Work
from shared.telemetry.worker_metrics import GAUGES
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.settings import settings_with
from tests.unit.engine.fake_runner import BLOCK_SIZE, fake_engine, make_prompt, make_spec

GREEDY = Sampling(max_tokens=6, temperature=0.0, ignore_eos=True)


def test_an_engine_that_has_computed_says_every_gauge(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    engine = built_engine(settings_with(model=str(tmp_path), device="cpu", kv_blocks=64))
    engine.step_clock.warm()
    before = {name.partition(":")[0] for name in engine.gauges.values()}
    assert before == {"memory_bytes", "kv_internal_fragmentation_ratio", "worker_ranks"}
    work = Work(Attempt("a", 0), tuple(range(40)), 40, bytes(32), Sampling(30, ignore_eos=True))
    engine.add(SequenceSpec.of(work, 16, "full", "agg"))
    while engine.has_work:
        engine.step()
    values = engine.gauges.values()
    assert {name.partition(":")[0] for name in values} == GAUGES.keys()
    shares = {name: value for name, value in values.items() if ":" not in name}
    assert all(0 <= share <= 1.5 for share in shares.values()), "the device was briefly measured"
    assert shares["bandwidth_share"] > 0 and shares["flops_share"] > 0
    assert shares["padding_ratio"] > 0, "a step of one row is padded on a CPU"
    assert 0 < shares["host_gap_ratio"] < 0.9
    assert values["memory_bytes:kv"] == engine.kv_pool.tensor.nbytes


def test_memory_adds_up_to_what_the_process_holds(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    engine = built_engine(settings_with(model=str(tmp_path), device="cpu", kv_blocks=4096))
    memory = engine.gauges.memory()
    assert set(memory) == {"weights", "kv", "others"} and min(memory.values()) > 0
    status = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) * 1024
    assert sum(memory.values()) == pytest.approx(resident, rel=0.02)


def test_unused_positions_are_the_ends_of_blocks() -> None:
    engine, _ = fake_engine(16, role="decode")
    running = engine._scheduler.running
    assert unused_share(running, BLOCK_SIZE) == 0
    engine.add(make_spec("a", make_prompt(5), GREEDY))
    engine.add(make_spec("b", make_prompt(8, 1), GREEDY))
    engine.step()
    positions = sum(len(sequence.block_table) for sequence in running) * BLOCK_SIZE
    assert unused_share(running, BLOCK_SIZE) == pytest.approx(1 - 13 / positions)
    while engine.has_work:
        engine.step()
    assert unused_share(running, BLOCK_SIZE) == 0
