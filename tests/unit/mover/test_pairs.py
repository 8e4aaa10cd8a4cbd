"""What the mover does over links: one thing after the other on each, nothing is touched before its
turn, and what a link cannot do any more is answered at once."""

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from shared.kv.columns import pack_ids, pack_words, unpack_words
from shared.kv.digest import BlockDigests, digest_of
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.mover.copies import CopyError
from shared.mover.host_copies import HostCopies
from shared.mover.links import pairs
from shared.mover.links.link import End
from shared.mover.links.pairs import Pairs
from shared.mover.messages import Accept, Done, Fetch, Give, Invite, Meet, Probe, Unmap
from shared.protocol import Attempt

LAYOUT = KVLayout("m", "float32", 3, 2, 1, 8, 4)
GROUPS = layer_groups(LAYOUT)
ATTEMPT = Attempt("r", 0)
LIMIT_S = 10.0


class FakeLink:
    """Moves bytes when a test says so."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.done: list[str] = []
        self.sent: list[bytes] = []
        self.incoming: SimpleQueue[bytes] = SimpleQueue()
        """what `receive` brings"""
        self.turns = threading.Semaphore(0)
        """calls that may go on"""
        self.is_aborted = threading.Event()
        self.is_closed = False

    def card(self) -> bytes:
        return self.end.encode()

    def meet(self, card: bytes) -> None:
        self._pass(f"meet {card.decode()}")

    def send(self, rows: torch.Tensor) -> None:
        self._pass("send")
        self.sent.append(rows.numpy().tobytes())

    def receive(self, rows: torch.Tensor) -> None:
        self._pass("receive")
        rows.numpy()[:] = list(self.incoming.get())

    def abort(self) -> None:
        self.is_aborted.set()
        self.turns.release()

    def close(self) -> None:
        self.is_closed = True

    def _pass(self, what: str) -> None:
        assert self.turns.acquire(timeout=LIMIT_S)
        if self.is_aborted.is_set():
            raise CopyError("aborted")
        self.done.append(what)


class Bench:
    """Pairs over a pool of 6 blocks whose content is known."""

    def __init__(self) -> None:
        self.memory = KVMemory.create(LAYOUT, 6)
        for block in range(6):
            self.memory.block(block)[:] = bytes([block + 1]) * LAYOUT.block_bytes
        self.made: list[FakeLink] = []
        self.pairs = Pairs(HostCopies(self.memory), self._make)
        self.answers: list[Done] = []

    def _make(self, end: End, host: str, device: torch.device) -> FakeLink:
        assert host == "h"
        assert device.type == "cpu"
        self.made.append(FakeLink(end))
        return self.made[-1]

    def give(self, number: int, *blocks: int, peer: str = "r") -> None:
        self.pairs.ask(peer, Give(number, peer, pack_ids(blocks), *GROUPS.all))

    def fetch(self, number: int, *blocks: int, source: str = "s") -> None:
        ids = pack_ids(blocks)
        self.pairs.ask(source, Fetch(number, ATTEMPT, source, ids, ids, *GROUPS.all))

    def invite(self, peer: str = "r") -> FakeLink:
        assert self.pairs.invite(Invite(0, peer, "h")) == Done(0, card=b"gives")
        self.pairs.ask(peer, Meet(1, peer, b"takes"))
        return self.made[-1]

    def accept(self, source: str = "s") -> FakeLink:
        assert self.pairs.accept(Accept(0, source, 4, b"gives", "h")) == Done(0, card=b"takes")
        return self.made[-1]

    def answered(self, number: int) -> Done:
        """Once it is."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            self.answers += self.pairs.ended()
            for done in self.answers:
                if done.number == number:
                    return done
            time.sleep(pairs.POLL_S)
        raise TimeoutError(f"{number} is not answered")


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.pairs.close()
    assert all(link.is_closed for link in bench.made)


def test_nobody_is_waited_for_before_there_is_a_pair(bench: Bench) -> None:
    assert bench.pairs.patience_s is None
    assert not bench.pairs.has("r")


def test_blocks_are_gathered_when_it_is_their_turn_and_not_before(bench: Bench) -> None:
    """The room that they go by still has those before them."""
    link = bench.invite()
    assert bench.pairs.patience_s == pairs.POLL_S
    bench.give(2, 3, 1)
    bench.give(3)
    bench.give(4, 5)
    link.turns.release()
    assert bench.answered(1) == Done(1)
    bench.memory.block(5)[:] = b"x" * LAYOUT.block_bytes
    link.turns.release(3)
    for number in (2, 3, 4):
        assert bench.answered(number) == Done(number)
    size = LAYOUT.block_bytes
    assert link.sent == [
        b"\4" * size + b"\2" * size,
        bytes(bench.memory.probe),
        b"x" * size,
    ]
    assert bench.pairs.patience_s is None


def test_what_comes_is_scattered_and_digested_where_it_lies(bench: Bench) -> None:
    link = bench.accept()
    probe = bytes(range(256)) * (4 * LAYOUT.block_bytes // 256)
    bench.pairs.ask("s", Probe(1, "s"))
    bench.fetch(2, 4, 0)
    link.incoming.put(probe)
    link.incoming.put(b"a" * LAYOUT.block_bytes + b"b" * LAYOUT.block_bytes)
    link.turns.release(3)
    probed = bench.answered(1)
    assert probed.digests == pack_words([digest_of(np.frombuffer(probe, np.uint8))])
    assert probed.num_bytes == len(probe)
    fetched = bench.answered(2)
    assert bytes(bench.memory.block(4)) == b"a" * LAYOUT.block_bytes
    assert bytes(bench.memory.block(0)) == b"b" * LAYOUT.block_bytes
    found = BlockDigests.of_pool(bench.memory).of([4, 0], GROUPS.all)
    assert (unpack_words(fetched.digests, 2) == found).all()
    assert link.done == ["meet gives", "receive", "receive"]


def test_a_link_that_failed_does_nothing_more(bench: Bench) -> None:
    link = bench.accept()
    before = bench.memory.rows().copy()
    for number in (1, 2, 3):
        bench.fetch(number, number)
    link.is_aborted.set()  # as it would fail by itself
    link.turns.release()
    for number in (1, 2, 3):
        assert bench.answered(number).problem == "aborted"
    with pytest.raises(CopyError, match="aborted"):
        bench.fetch(4, 1)
    assert (bench.memory.rows() == before).all()


def test_one_pair_does_not_wait_for_another(bench: Bench) -> None:
    bench.invite("slow")
    quick = bench.invite("quick")
    bench.give(2, 1, peer="slow")
    bench.give(3, 1, peer="quick")
    quick.turns.release(2)
    assert bench.answered(3) == Done(3)


def test_leaving_ends_what_is_under_way_first(bench: Bench) -> None:
    link = bench.accept()
    bench.fetch(1, 2)
    bench.answers += bench.pairs.leave(Unmap(2, "s"))
    with pytest.raises(CopyError, match="ended"):
        bench.fetch(3, 2)
    assert bench.answered(2) == Done(2)
    assert link.is_closed
    assert [done.number for done in bench.answers] == [1, 2]
    assert not bench.pairs.has("s")
    bench.accept()


def test_no_more_than_so_many_workers_are_linked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "MAX_PAIRS", 2)
    bench.invite("a")
    bench.accept("b")
    with pytest.raises(CopyError, match="2 workers are linked"):
        bench.invite("c")
    bench.answers += bench.pairs.leave(Unmap(9, "a"))
    assert bench.answered(9) == Done(9)
    bench.invite("c")


def test_a_name_stands_for_one_pair(bench: Bench) -> None:
    bench.invite("a")
    with pytest.raises(CopyError, match="already"):
        bench.invite("a")


def test_who_asks_twice_for_the_end_is_answered_twice(bench: Bench) -> None:
    bench.accept()
    bench.fetch(1, 2)
    for number in (2, 3):
        bench.answers += bench.pairs.leave(Unmap(number, "s"))
    assert bench.answered(3) == Done(3)
    assert [done.number for done in bench.answers] == [1, 2, 3]


def test_what_a_library_raises_costs_the_link_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = bench.accept()
    monkeypatch.setattr(link, "receive", failing)
    bench.fetch(1, 2)
    link.turns.release()
    assert bench.answered(1).problem == "ValueError: what nobody expects"
    bench.answers += bench.pairs.leave(Unmap(2, "s"))
    assert bench.answered(2) == Done(2)
    assert link.is_closed
    monkeypatch.setattr(bench.pairs, "_make_link", failing)
    with pytest.raises(CopyError, match="what nobody expects"):
        bench.accept()


def failing(*_: object) -> None:
    raise ValueError("what nobody expects")


def test_an_end_is_told_after_what_came_before_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread says what it did, and ends, just after the mover has looked."""
    link = bench.accept()
    bench.fetch(1, 2)
    bench.answers += bench.pairs.leave(Unmap(2, "s"))
    thread, waiting = bench.pairs._pairs["s"].thread, bench.pairs._ended
    while_looking = iter([True])

    class Ending(SimpleQueue):  # type: ignore[type-arg]
        def empty(self) -> bool:
            if next(while_looking, False):
                return True
            thread.join(LIMIT_S)
            return waiting.empty()

        def get(self) -> object:  # type: ignore[override]
            return waiting.get()

    link.turns.release()
    monkeypatch.setattr(bench.pairs, "_ended", Ending())
    assert bench.answered(2) == Done(2)
    assert [done.number for done in bench.answers] == [1, 2]


def test_blocks_are_filled_behind_the_steps_that_may_still_write_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[object] = []
    scatter = HostCopies.scatter

    def noting(of: HostCopies, *given: Any) -> Any:
        marks.append(given[-1])
        return scatter(of, *given)

    monkeypatch.setattr(HostCopies, "scatter", noting)
    link = bench.accept()
    ids = pack_ids([2])
    bench.pairs.ask("s", Fetch(1, ATTEMPT, "s", ids, ids, *GROUPS.all), "the mark")
    link.incoming.put(bytes(LAYOUT.block_bytes))
    link.turns.release(2)
    assert bench.answered(1).problem == ""
    assert marks == ["the mark"]


def test_a_room_is_emptied_before_the_next_but_one_fills_it(bench: Bench) -> None:
    link = bench.accept()
    for number, block in enumerate((1, 2, 3, 4), 1):
        bench.fetch(number, block)
        link.incoming.put(bytes([block]) * LAYOUT.block_bytes)
    link.turns.release(5)
    for number in (1, 2, 3, 4):
        bench.answered(number)
    for block in (1, 2, 3, 4):
        assert bytes(bench.memory.block(block)) == bytes([block]) * LAYOUT.block_bytes
