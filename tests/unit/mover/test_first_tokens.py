"""Token 1 of attempts whose KV is here: seen once it is written, under the right generation."""

import os

import pytest

from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, first_token_word
from shared.mover import first_tokens
from shared.mover.copies import CopyError
from shared.mover.first_tokens import FirstTokens
from shared.protocol import Attempt
from tests.support.pairs.transfer_pair import num_pools

LAYOUT = KVLayout("tiny", "float32", 1, 1, 1, 8, 4)
NUM_BLOCKS = 600
"""whose words fill more than a page"""
A, B = Attempt("a", 0), Attempt("b", 0)


class Told:
    """First tokens of one source, and its pool."""

    def __init__(self, arena_bytes: int | None = None) -> None:
        self.memory = KVMemory.create(LAYOUT, NUM_BLOCKS, arena_bytes)
        self.num_woken = 0
        self.first_tokens = FirstTokens(self._wake)
        self.first_tokens.map("p", NUM_BLOCKS, self.memory.read_only())

    def tell(self, block: int, generation: int, token_id: int) -> None:
        self.memory.first_tokens[block] = first_token_word(generation, token_id)

    def _wake(self) -> None:
        self.num_woken += 1


@pytest.mark.parametrize("arena_bytes", [None, 12345])
@pytest.mark.parametrize("block", [0, NUM_BLOCKS - 1])
@pytest.mark.parametrize("token_id", [0, 151_935])
@pytest.mark.parametrize("generation", [1, 2**32 + 3])
def test_a_token_is_seen_once_it_is_told(
    arena_bytes: int | None, block: int, token_id: int, generation: int
) -> None:
    told = Told(arena_bytes)
    told.first_tokens.expect(A, "p", block, generation)
    assert told.num_woken == 1 and told.first_tokens.any_expected
    assert told.first_tokens.arrived() == []
    told.tell(block, generation, token_id)
    assert told.first_tokens.arrived() == [(A, token_id)]
    assert not told.first_tokens.any_expected and told.first_tokens.arrived() == []


def test_what_was_told_before_it_is_expected_is_seen_too() -> None:
    told = Told()
    told.tell(5, 1, 42)
    told.first_tokens.expect(A, "p", 5, 1)
    assert told.first_tokens.arrived() == [(A, 42)]


def test_the_token_of_another_generation_is_none() -> None:
    told = Told()
    told.tell(5, 1, 42)
    told.first_tokens.expect(A, "p", 5, 2)
    assert told.first_tokens.arrived() == []
    told.tell(5, 2, 43)
    assert told.first_tokens.arrived() == [(A, 43)]


def test_it_is_not_looked_for_once_it_is_given_up() -> None:
    told = Told()
    told.first_tokens.expect(A, "p", 5, 1)
    told.first_tokens.give_up(A)
    told.tell(5, 1, 42)
    assert told.first_tokens.arrived() == []
    told.first_tokens.give_up(A)
    told.first_tokens.expect(A, "p", 5, 1)
    assert told.first_tokens.arrived() == [(A, 42)]
    with pytest.raises(CopyError):
        told.first_tokens.give_up(A)


def test_what_the_step_loop_declines_can_be_given_up() -> None:
    told = Told()
    told.tell(5, 1, 42)
    told.first_tokens.expect(A, "p", 5, 1)
    assert told.first_tokens.arrived() == [(A, 42)]
    told.first_tokens.decline(A)
    told.first_tokens.give_up(A)


def test_what_is_forgotten_counts_as_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """To forget that may cost a pull, never a wrong token."""
    monkeypatch.setattr(first_tokens, "MAX_PASSED", 1)
    told = Told()
    for attempt in (A, B):
        told.first_tokens.expect(attempt, "p", 5, 1)
        told.first_tokens.give_up(attempt)
    told.first_tokens.give_up(B)
    with pytest.raises(CopyError):
        told.first_tokens.give_up(A)


def test_it_is_looked_for_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_tokens, "PATIENCE_S", 0.0)
    told = Told()
    told.first_tokens.expect(A, "p", 5, 1)
    while told.first_tokens.any_expected:
        assert told.first_tokens.arrived() == []


def test_a_source_that_is_gone_tells_nothing() -> None:
    told = Told()
    told.first_tokens.map("q", NUM_BLOCKS, told.memory.read_only())
    told.first_tokens.expect(A, "p", 5, 1)
    told.first_tokens.expect(B, "q", 5, 1)
    told.first_tokens.unmap("p")
    told.first_tokens.unmap("p")
    told.tell(5, 1, 42)
    assert told.first_tokens.arrived() == [(B, 42)]
    with pytest.raises(CopyError):
        told.first_tokens.expect(A, "p", 5, 1)


def test_nothing_stays_open() -> None:
    told = Told()
    told.first_tokens.close()
    num_before = num_pools()
    told.first_tokens.map("p", NUM_BLOCKS, told.memory.read_only())
    assert num_pools() == num_before + 2, "a mapping and its descriptor"
    told.first_tokens.close()
    assert num_pools() == num_before


@pytest.mark.parametrize("block", [-1, NUM_BLOCKS])
def test_a_block_that_the_source_does_not_have_tells_nothing(block: int) -> None:
    told = Told()
    with pytest.raises(CopyError):
        told.first_tokens.expect(A, "p", block, 1)


def test_a_file_that_is_too_small_or_may_shrink_is_not_mapped() -> None:
    told = Told()
    with pytest.raises(CopyError):
        told.first_tokens.map("p", 10**9, told.memory.read_only())
    shrinks = os.memfd_create("shrinks")
    os.ftruncate(shrinks, 4096 + 8 * NUM_BLOCKS)
    with pytest.raises(CopyError):
        told.first_tokens.map("p", NUM_BLOCKS, shrinks)
