"""What attempts use of a worker: shares that sum to the steps, what others cost them, KV."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.link.server import Peer
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Attempt, TokenRun
from shared.telemetry import attributes as names
from shared.worker.attempts import usage
from shared.worker.attempts.table import AttemptTable, HeldAttempt
from shared.worker.attempts.usage import StepShares, note_step, taken, told
from shared.worker.channel import StepReport
from tests.support.measured import Measured
from tests.unit.worker.fake_parts import LAYOUT, LOAD, FakePeer, Journal, make_assign, make_receive

MS = 1_000_000
BLOCK_SIZE, BLOCK_BYTES = LAYOUT.block_size, LAYOUT.block_bytes


def table_of(num_attempts: int, num_tokens: int = 5) -> AttemptTable:
    """Of prompts that this worker computes and decodes, started at 1 ns."""
    table, peer = AttemptTable(), cast("Peer", FakePeer(Journal()))
    for number in range(num_attempts):
        message = make_assign(f"r{number}", num_tokens=num_tokens, mode="local", reason="agg")
        held = HeldAttempt.of(message, peer, 1)
        held.started_ns = 1
        table.hold(held)
    return table


def held_of(table: AttemptTable, number: int) -> HeldAttempt:
    return table[Attempt(f"r{number}", 0)]


def report(
    start_ms: float,
    end_ms: float,
    chunks: Sequence[tuple[int, int]] = (),
    rows: Sequence[int] = (),
    step_s: float = 0.0,
) -> StepReport:
    """A step: (attempt, tokens) of chunks; attempts that have a token."""
    return StepReport(
        int(start_ms * MS),
        int(end_ms * MS),
        replace(LOAD, step_costs=StepCosts(step_s=step_s)),
        chunks=tuple((Attempt(f"r{number}", 0), num_tokens) for number, num_tokens in chunks),
        tokens=tuple(TokenRun(f"r{number}", 0, 0, (7,)) for number in rows),
    )


STEPS = st.lists(
    st.tuples(
        st.floats(0.1, 50),
        st.dictionaries(st.integers(0, 3), st.integers(1, 200), max_size=3),
        st.sets(st.integers(0, 5)),
        st.floats(0, 0.02),
    ),
    max_size=20,
)


def played(table: AttemptTable, steps: list[tuple[float, dict[int, int], set[int], float]]) -> int:
    """The time of those that computed something, in ns."""
    at_ms, total_ns = 1.0, 0
    for length_ms, chunks, rows, step_s in steps:
        step = report(at_ms, at_ms + length_ms, tuple(chunks.items()), tuple(rows), step_s)
        note_step(table, step, LAYOUT)
        at_ms += length_ms
        total_ns += (step.end_ns - step.start_ns) * bool(chunks or rows)
    return total_ns


@given(steps=STEPS)
def test_the_shares_of_all_sequences_sum_to_the_time_of_the_steps(
    steps: list[tuple[float, dict[int, int], set[int], float]],
) -> None:
    table = table_of(6)
    total_ns = played(table, steps)
    shares_ns = [held.usage.compute_ns for held in table]
    assert sum(shares_ns) == pytest.approx(total_ns)


@given(steps=STEPS)
def test_no_sequence_loses_more_to_others_than_its_steps_took(
    steps: list[tuple[float, dict[int, int], set[int], float]],
) -> None:
    table = table_of(6)
    played(table, steps)
    for held in table:
        used = held.usage
        assert min(used.compute_ns, used.crowded_ns, used.stretched_ns) >= 0
        spent_ns = used.compute_ns + used.crowded_ns + used.stretched_ns
        assert spent_ns <= used.step_ns * (1 + 1e-9)


def each_alike(self: StepShares, num_own: int, *, chunk: bool) -> tuple[float, float, float]:
    """Mutant: every sequence pays for the whole step."""
    del num_own, chunk
    return float(self.step_ns), 0.0, 0.0


def test_whole_steps_for_everybody_do_not_sum_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage.StepShares, "of_tokens", each_alike)
    with pytest.raises(AssertionError):
        test_the_shares_of_all_sequences_sum_to_the_time_of_the_steps()


def test_a_step_is_divided_by_computed_tokens() -> None:
    table = table_of(3)
    note_step(table, report(0, 20, chunks=((0, 18),), rows=(1, 2)), LAYOUT)
    assert [held.usage.compute_ns / MS for held in table] == [18, 1, 1]
    assert {held.usage.step_ns / MS for held in table} == {20}


def test_a_chunk_that_ends_a_prompt_has_its_token_for_nothing() -> None:
    table = table_of(2)
    note_step(table, report(0, 10, chunks=((0, 9),), rows=(0, 1)), LAYOUT)
    assert [held.usage.compute_ns / MS for held in table] == [9, 1]


def test_who_is_gone_has_had_its_share_of_the_step_all_the_same() -> None:
    table = table_of(2)
    table.drop(Attempt("r1", 0))
    note_step(table, report(0, 10, rows=(0, 1)), LAYOUT)
    assert held_of(table, 0).usage.compute_ns / MS == 5


def test_a_prompt_s_chunk_stretches_those_that_decode_next_to_it() -> None:
    """Alone the row would have had the 8 ms that any step takes and its share."""
    table = table_of(3)
    note_step(table, report(0, 50, chunks=((0, 98),), rows=(1, 2), step_s=8e-3), LAYOUT)
    used = held_of(table, 1).usage
    assert used.stretched_ns + used.crowded_ns == pytest.approx((50 - 8 - 0.5) * MS)
    assert used.stretched_ns / used.crowded_ns == pytest.approx(98)
    assert held_of(table, 0).usage.stretched_ns == 0, "its own chunk is not its neighbour"


def test_many_that_decode_crowd_each_other_and_one_alone_is_crowded_by_nobody() -> None:
    table = table_of(4)
    note_step(table, report(0, 12, rows=(0, 1, 2, 3), step_s=8e-3), LAYOUT)
    assert held_of(table, 0).usage.crowded_ns / MS == pytest.approx(12 - 8 - 3)
    note_step(table, report(12, 30, rows=(1,), step_s=8e-3), LAYOUT)
    assert held_of(table, 1).usage.crowded_ns / MS == pytest.approx(1), "a slow step is its own"


def test_kv_is_counted_by_blocks_from_the_first_step_on() -> None:
    """Five positions are two blocks of four until the ninth."""
    table = table_of(1)
    held = held_of(table, 0)
    note_step(table, report(0, 1000, chunks=((0, 5),), rows=(0,)), LAYOUT)
    for second in range(1, 5):
        note_step(table, report(second * 1000, (second + 1) * 1000, rows=(0,)), LAYOUT)
    assert told(held, 5_000 * MS)[names.KV_BYTE_SECONDS] == pytest.approx(5 * 2 * BLOCK_BYTES)
    assert held.usage.kv_bytes == 3 * BLOCK_BYTES
    assert told(held, 7_000 * MS)[names.KV_BYTE_SECONDS] == pytest.approx(16 * BLOCK_BYTES)


def test_kv_that_arrives_is_counted_from_its_reservation_on() -> None:
    table, message = AttemptTable(), make_receive("r0")
    held = HeldAttempt.of(message, cast("Peer", FakePeer(Journal())), 1)
    held.reserved_ns = 1_000 * MS
    table.hold(held)
    note_step(table, report(3_000, 4_000, rows=(0,)), LAYOUT)
    assert told(held, 4_000 * MS)[names.KV_BYTE_SECONDS] == pytest.approx(3 * 2 * BLOCK_BYTES)


def test_what_was_taken_is_not_told_again() -> None:
    table = table_of(1)
    held = held_of(table, 0)
    note_step(table, report(0, 10, chunks=((0, 5),), rows=(0,)), LAYOUT)
    assert taken(held, 10 * MS)[names.COMPUTE_MS] == 10
    note_step(table, report(10, 14, rows=(0,)), LAYOUT)
    assert told(held, 14 * MS)[names.COMPUTE_MS] == 4
    assert told(held, 14 * MS)[names.COMPUTE_MS] == 4


def test_it_costs_less_than_finding_the_attempts_of_a_step(measured: Measured) -> None:
    """Which the io process does as well, next to what it says of them."""
    table, num_rows = table_of(256), 256
    step = report(0, 1, rows=range(num_rows))
    note_step(table, step, LAYOUT)
    noting_s = least_s(lambda: note_step(table, step, LAYOUT))
    finding_s = least_s(lambda: table.with_runs(step.tokens))
    measured.at_most("by finding them", noting_s / finding_s, 1.5)


def least_s(work: Callable[[], object]) -> float:
    """Of the CPU's time, of many tries."""
    tries = []
    for _ in range(50):
        begin_s = time.thread_time()
        work()
        tries.append(time.thread_time() - begin_s)
    return min(tries)
