"""Retry-After as a promise: times in a row, a place at that time, none for one that hammers."""

from collections.abc import Sequence
from typing import Any

import pytest

from services.gateway.owner.placement.promises import (
    HORIZON_S,
    KEPT_S,
    MAX_OF_ONE_PROMPT,
    MAX_PROMISES,
    Promises,
    prompt_key,
)
from shared.kv.block_hash import chain_hashes

ONE, TWO = prompt_key("t", (1, 2)), prompt_key("t", (1, 3))


def test_refused_clients_are_told_times_in_a_row() -> None:
    promises = Promises()
    assert [promises.make(ONE, 10.0, 0.5), promises.make(TWO, 10.0, 0.5)] == [0.5, 1.0]
    assert promises.make(ONE, 10.25, 0.5) == pytest.approx(1.25)
    assert promises.make(ONE, 100.0, 0.5) == 0.5


def test_clients_that_never_return_do_not_send_the_others_away_for_hours() -> None:
    promises = Promises()
    told_s = [promises.make(prompt_key("t", (number,)), 0.0, 1.0) for number in range(1700)]
    assert max(told_s) == HORIZON_S
    assert len(promises) == HORIZON_S
    assert promises.make(ONE, 4.0, 1.0) <= HORIZON_S
    promises.start_over()
    assert promises.make(ONE, 4.0, 1.0) == 1.0


def test_room_for_the_next_ones_breaks_no_promise() -> None:
    promises = Promises()
    for key in (TWO, ONE):
        promises.make(key, 0.0, 20.0)
    promises.start_over()
    assert promises.make(TWO, 5.0, 1.0) == 1.0
    assert promises.make(TWO, 5.0, 1.0) == 2.0
    assert promises.claim(TWO, 6.0) and not promises.claim(TWO, 6.0)
    assert promises.claim(TWO, 20.0) and promises.claim(ONE, 40.0)
    assert promises.num_kept(40.0) == 0


def test_a_promise_is_kept_from_its_time_on_once_and_to_its_prompt_only() -> None:
    promises = Promises()
    promises.make(ONE, 0.0, 2.0)
    assert not promises.claim(ONE, 1.9)
    assert (promises.num_kept(1.9), promises.num_kept(2.0)) == (0, 1)
    assert not promises.claim(TWO, 2.0)
    assert promises.claim(ONE, 2.0)
    assert not promises.claim(ONE, 2.0)
    assert promises.num_kept(2.0) == 0


def test_a_place_is_not_kept_for_ever() -> None:
    promises = Promises()
    promises.make(ONE, 0.0, 2.0)
    assert promises.num_kept(2.0 + KEPT_S) == 1
    assert promises.num_kept(2.1 + KEPT_S) == 0
    assert not promises.claim(ONE, 2.1 + KEPT_S)


def test_who_hammers_takes_a_bounded_share_and_there_is_a_bound_for_all() -> None:
    promises = Promises()
    for _ in range(2 * MAX_OF_ONE_PROMPT):
        promises.make(ONE, 0.0, 1e-6)
    assert len(promises) == MAX_OF_ONE_PROMPT
    for number in range(2 * MAX_PROMISES):
        promises.make(prompt_key("t", (number,)), 0.0, 1e-6)
    assert len(promises) == MAX_PROMISES


class Counted(Sequence[int]):
    """A prompt that knows how many of its tokens were read."""

    def __init__(self, length: int) -> None:
        self.tokens = range(length)
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: Any) -> Any:
        found = self.tokens[place]
        self.num_read += len(found) if isinstance(place, slice) else 1
        return found


@pytest.mark.parametrize("length", [16, 31, 32, 33, 131_071, 131_072])
def test_a_known_prompt_is_named_by_its_hashes_and_what_follows_them(length: int) -> None:
    """A long prompt is not read again for each newcomer while promises exist."""
    tokens, hashes = Counted(length), chain_hashes(b"root", range(length), 16)
    key = prompt_key("t", tokens, hashes)
    assert length % 16 <= tokens.num_read <= 32
    other_tail = [*range(length - 1), 7]
    others = {
        prompt_key("t", other_tail, chain_hashes(b"root", other_tail, 16)),
        prompt_key("t", [7, *range(1, length)], chain_hashes(b"root", [7, *range(1, length)], 16)),
        prompt_key("t", range(length + 1), chain_hashes(b"root", range(length + 1), 16)),
        prompt_key("u", range(length), hashes),
    }
    assert len(others) == 4 and key not in others
    assert prompt_key("t", range(length), hashes) == key


def test_a_prompt_of_another_tenant_is_another_request() -> None:
    assert prompt_key("a", (1, 2)) != prompt_key("b", (1, 2))
    assert prompt_key("a", (1, 23)) != prompt_key("a", (12, 3))
