"""A GPU that is too small: what the refusal says would help, helps when it is done."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.loading.pool_size import GIB, MemoryProfile, blocks_on_gpu
from shared.engine.loading.room_advice import (
    RANKS_BYTES,
    StepForm,
    check_weights_fit,
    ways_to_room,
)
from shared.engine.scheduling.block_pool import MIN_BLOCKS
from shared.errors import ModelError, SettingsError

BLOCK_BYTES = 2 * 2**20
FLAGS = {
    "--gpu-memory-utilization": "utilization",
    "--max-num-batched-tokens": "tokens",
    "--max-num-seqs": "sequences",
    "--tp": "tp",
}


class Machine:
    """A model on GPUs of which each rank needs what its settings make it need."""

    def __init__(self, total_gib: float, weights_gib: float, token_kib: int, heads: int) -> None:
        self.total_bytes = int(total_gib * GIB)
        self.weights_bytes = int(weights_gib * GIB)
        self.token_bytes = token_kib * 1024
        self.heads = heads
        self.settings: dict[str, float] = {
            "utilization": 0.9,
            "tokens": 8192,
            "sequences": 256,
            "tp": 1,
        }

    def weights_of(self, tp: int) -> int:
        if self.heads % tp:
            raise ModelError("attention heads cannot be split evenly")
        return self.weights_bytes // tp + self.weights_bytes // 20

    def start(self, **settings: float) -> int:
        """Its blocks, or SettingsError."""
        now = {**self.settings, **settings}
        tp, sequences = int(now["tp"]), int(now["sequences"])
        form = StepForm(int(now["tokens"]), sequences, 14 * 128_000, tp, self.weights_of)
        profile = MemoryProfile(
            total_bytes=self.total_bytes,
            utilization=now["utilization"],
            others_bytes=GIB // 2 + (RANKS_BYTES if tp > 1 else 0),
            weights_bytes=self.weights_of(tp),
            activations_bytes=int(now["tokens"]) * self.token_bytes // tp
            + form.max_seqs * form.seq_bytes,
        )
        return blocks_on_gpu(profile, BLOCK_BYTES, lambda *told: ways_to_room(form, *told))


def advice(machine: Machine) -> list[tuple[str, float]]:
    """(setting, value) of each flag that the refusal names; none where it starts."""
    try:
        machine.start()
    except SettingsError as error:
        found = re.findall(r"(--[a-z-]+) ([0-9.]+)", str(error).rpartition(". A ")[2])
        return [(FLAGS[flag], float(value)) for flag, value in found]
    return []


@given(
    total_gib=st.floats(8, 160),
    share=st.floats(0.5, 1.2),
    token_kib=st.integers(50, 2000),
    heads=st.sampled_from([4, 12, 32]),
)
def test_each_flag_that_is_named_makes_a_start(
    total_gib: float, share: float, token_kib: int, heads: int
) -> None:
    machine = Machine(total_gib, share * total_gib, token_kib, heads)
    for setting, value in advice(machine):
        assert machine.start(**{setting: value}) >= MIN_BLOCKS


def test_twenty_refusals_start_as_they_were_told_to() -> None:
    """Between them they name every flag."""
    machines = [
        Machine(80, weights_gib, token_kib, 32)
        for weights_gib in (58, 61, 64, 66, 68, 72)
        for token_kib in (200, 900, 1300, 1600, 1900)
    ]
    told = [(machine, way) for machine in machines for way in advice(machine)]
    refused = {id(machine) for machine, _ in told}
    assert len(refused) >= 20
    assert {setting for _, (setting, _) in told} == set(FLAGS.values())
    for machine, (setting, value) in told:
        assert machine.start(**{setting: value}) >= MIN_BLOCKS


def test_nothing_is_named_that_would_not_do() -> None:
    with pytest.raises(SettingsError, match="baton capacity"):
        Machine(24, 26, 2000, 1).start()
    assert advice(Machine(24, 26, 2000, 1)) == []


def test_weights_that_no_gpu_holds_are_refused_before_they_are_read() -> None:
    form = StepForm(8192, 256, 10**6, 1, Machine(80, 140, 100, 32).weights_of)
    check_weights_fit(form, 200 * GIB)
    with pytest.raises(SettingsError, match=r"147.0 GiB of each GPU, and 79.0 GiB .* --tp 4 split"):
        check_weights_fit(form, 79 * GIB)
    whole = replace(form, weights_of=Machine(80, 140, 100, 1).weights_of)
    with pytest.raises(SettingsError, match=r"are free: a smaller model; `baton capacity`"):
        check_weights_fit(whole, 79 * GIB)
