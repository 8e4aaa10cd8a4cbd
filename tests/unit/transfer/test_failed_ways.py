"""What speaks against a way, and for how long."""

import pytest

from shared.errors import (
    CannotMapError,
    CorruptPieceError,
    KVTransferError,
    PeerLostError,
    StaleBlocksError,
)
from shared.transfer.ways.failed_ways import LEAVE_S, FailedWays
from tests.support.fakes.manual_clock import ManualClock


@pytest.mark.parametrize("error", [CorruptPieceError("bits"), CannotMapError("gone")])
def test_two_failures_in_turn_leave_a_way(error: KVTransferError) -> None:
    failed = FailedWays(ManualClock())
    assert not failed.note("mapped", error)
    assert not failed.why_left("mapped")
    assert failed.note("mapped", error)
    assert failed.why_left("mapped") == f"mapped failed 2 times ({error})"
    assert not failed.why_left("nixl")


@pytest.mark.parametrize("error", [PeerLostError("killed"), StaleBlocksError("used again")])
def test_what_a_way_cannot_help_is_not_counted(error: KVTransferError) -> None:
    failed = FailedWays(ManualClock())
    assert not any(failed.note("mapped", error) for _ in range(5))


def test_pulls_that_were_under_way_when_it_was_left_change_nothing() -> None:
    clock = ManualClock()
    failed = FailedWays(clock)
    for _ in range(2):
        failed.note("mapped", CorruptPieceError("bits"))
    until_s = failed.until_s
    clock.advance(1.0)
    assert not failed.note("mapped", CorruptPieceError("bits"))
    assert failed.until_s == until_s == clock.monotonic_s() - 1.0 + LEAVE_S


def test_with_none_left_there_is_nothing_to_wait_for() -> None:
    assert FailedWays(ManualClock()).until_s == float("inf")
