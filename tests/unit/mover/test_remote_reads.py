"""Reads by an agent: a question waits for its reads and for no others; what does not end is
stopped, and only then is it said to have ended."""

import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from shared.kv.columns import pack_ids, unpack_words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.mover import remote_reads
from shared.mover.agent import pack_cards
from shared.mover.copies import CopyError, Regions
from shared.mover.host_copies import HostCopies
from shared.mover.messages import Done, Fetch, Join, Probe, Show, Unmap
from shared.mover.reads import Reads
from shared.mover.remote_reads import RemoteReads
from shared.protocol import Attempt

LAYOUT = KVLayout("m", "float32", 3, 2, 2, 8, 4)
GROUPS = layer_groups(LAYOUT)
ATTEMPT = Attempt("r", 0)


class Handle:
    """Of reads that end when a test says so."""

    def __init__(self, reads: Reads) -> None:
        self.reads = list(zip(*(column.tolist() for column in reads), strict=True))
        self.has_ended = False
        self.problem = ""


class FakeAgent:
    """Keeps the promise of `Agent`; reads nothing."""

    def __init__(self, name: str, regions: Regions) -> None:
        self.name = name
        self.regions = regions
        self.joined: list[str] = []
        self.handles: list[weakref.ref[Handle]] = []
        self.num_progressed = 0
        self.held_at_close: int | None = None
        self.fails = ""
        """source of which no read begins"""

    def card(self) -> bytes:
        return b"card"

    def join(self, source: str, card: bytes, num_bytes: int) -> None:
        if card == b"bad":
            raise CopyError("the source's card is bad")
        self.joined.append(source)

    def leave(self, source: str) -> None:
        self.joined.remove(source)

    def begin(self, source: str, reads: Reads) -> Handle:
        if source == self.fails:
            raise CopyError("cut off")
        handle = Handle(reads)
        self.handles.append(weakref.ref(handle))
        return handle

    def is_done(self, handle: Handle) -> bool:
        if handle.problem:
            raise CopyError(handle.problem)
        return handle.has_ended

    def progress(self) -> None:
        self.num_progressed += 1

    def close(self) -> None:
        gc.collect()
        self.held_at_close = sum(handle() is not None for handle in self.handles)

    def handle(self, at: int) -> Handle:
        handle = self.handles[at]()
        assert handle is not None
        return handle


class Remote:
    """Reads into a pool of 6 blocks, from sources of 4."""

    def __init__(self) -> None:
        self.memory = KVMemory.create(LAYOUT, 6)
        self.made: list[FakeAgent] = []
        self.reads = RemoteReads(HostCopies(self.memory), self._make)

    def _make(self, name: str, regions: Regions) -> FakeAgent:
        self.made.append(FakeAgent(name, regions))
        return self.made[-1]

    @property
    def agent(self) -> FakeAgent:
        return self.made[-1]

    def join(self, source: str, *cards: bytes) -> None:
        """`cards`: of its ranks; default: it has one."""
        packed = pack_cards(cards or [b"card"])
        assert self.reads.join(Join(0, "d.1", source, 4, packed)) == Done(0)

    def fetch(
        self, number: int, source: str, theirs: Sequence[int], groups: GroupRange = GROUPS.all
    ) -> None:
        ids = pack_ids(theirs)
        self.reads.fetch(Fetch(number, ATTEMPT, source, ids, ids, *groups), None)

    def ended(self) -> list[int]:
        return [done.number for done in self.reads.ended()]


@pytest.fixture
def remote() -> Remote:
    remote = Remote()
    remote.join("p.1")
    return remote


def test_no_agent_is_made_before_one_is_needed() -> None:
    remote = Remote()
    assert remote.reads.patience_s is None
    assert not remote.ended()
    assert not remote.made
    assert remote.reads.show(Show(1, "d.1")) == Done(1, card=pack_cards([b"card"]))
    remote.join("p.1")
    assert [agent.name for agent in remote.made] == ["d.1/0"]
    remote.ended()
    assert remote.agent.num_progressed == 1


def test_neighbours_are_one_read_and_groups_are_one_each(remote: Remote) -> None:
    base, size, span = remote.agent.regions.pool.address, LAYOUT.block_bytes, GROUPS.span
    remote.fetch(1, "p.1", (0, 1, 3))
    assert remote.agent.handle(0).reads == [
        (0, base, 2 * size),
        (3 * size, base + 3 * size, size),
    ]
    last = span(GroupRange(1, 1))
    remote.fetch(2, "p.1", (0, 1), GroupRange(1, 1))
    assert remote.agent.handle(1).reads == [
        (at * size + last.start, base + at * size + last.start, last.stop - last.start)
        for at in (0, 1)
    ]


def test_each_answer_comes_with_the_end_of_its_reads(remote: Remote) -> None:
    remote.join("p.2")
    remote.fetch(1, "p.1", (0,))
    remote.fetch(2, "p.2", (1, 2))
    assert remote.ended() == []
    remote.memory.block(1)[:] = bytes(range(256)) * (LAYOUT.block_bytes // 256)
    remote.agent.handle(1).has_ended = True
    (done,) = remote.reads.ended()
    assert done.number == 2
    found = unpack_words(done.digests, 2)
    assert np.array_equal(found, BlockDigests.of_pool(remote.memory).of((1, 2), GROUPS.all))
    remote.agent.handle(0).has_ended = True
    assert remote.ended() == [1]


def test_a_source_is_left_once_its_last_read_has_ended(remote: Remote) -> None:
    remote.fetch(1, "p.1", (0,))
    assert remote.reads.leave(Unmap(2, "p.1")) is None
    assert remote.ended() == []
    assert remote.agent.joined == ["p.1/0"]
    with pytest.raises(CopyError, match="cannot be read any more"):
        remote.fetch(3, "p.1", (0,))
    remote.agent.handle(0).has_ended = True
    assert remote.ended() == [1, 2]
    assert remote.agent.joined == []
    assert not remote.reads.has("p.1")
    remote.join("p.1")
    assert remote.reads.leave(Unmap(4, "p.1")) == Done(4)


def test_a_source_whose_read_failed_is_read_no_more(remote: Remote) -> None:
    remote.reads.probe(Probe(1, "p.1"))
    remote.agent.handle(0).problem = "gone"
    assert list(remote.reads.ended()) == [Done(1, problem="gone")]
    with pytest.raises(CopyError, match="cannot be read any more"):
        remote.fetch(2, "p.1", (0,))


def test_blocks_that_a_source_does_not_have(remote: Remote) -> None:
    with pytest.raises(CopyError, match="a block that its pool does not have"):
        remote.fetch(1, "p.1", (4,))


def test_a_probe_that_does_not_end_is_stopped_sooner(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.reads.probe(Probe(1, "p.1"))
    monkeypatch.setattr(remote_reads, "LIMIT_S", -1.0)
    assert remote.ended() == []
    monkeypatch.setattr(remote_reads, "PROBE_LIMIT_S", -1.0)
    (done,) = remote.reads.ended()
    assert (done.number, done.problem) == (1, "reads were stopped: one did not end")


def test_what_does_not_end_goes_with_the_agent(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent can stop reads only if nobody holds a handle of them any more."""
    remote.join("p.2")
    remote.fetch(1, "p.1", (0,))
    remote.fetch(2, "p.2", (1,))
    remote.reads.leave(Unmap(3, "p.2"))
    assert remote.ended() == []
    stopped = remote.agent
    monkeypatch.setattr(remote_reads, "LIMIT_S", -1.0)
    assert remote.ended() == [1, 2, 3]
    assert stopped.held_at_close == 0
    assert not remote.reads.has("p.1")
    remote.join("p.1")
    assert remote.agent is not stopped


def test_reads_of_several_ranks_are_answered_as_one(remote: Remote) -> None:
    remote.join("p.2", b"card", b"card")
    assert remote.agent.joined == ["p.1/0", "p.2/0", "p.2/1"]
    remote.fetch(1, "p.2", (0, 2))
    near, far = remote.agent.handle(0).reads, remote.agent.handle(1).reads
    assert len(near) == len(far) == 2 * 2 * LAYOUT.num_layers, "a row of each plane of each block"
    remote.agent.handle(1).has_ended = True
    assert remote.ended() == []
    remote.agent.handle(0).has_ended = True
    assert remote.ended() == [1]
    assert remote.reads.leave(Unmap(2, "p.2")) == Done(2)
    assert remote.agent.joined == ["p.1/0"]


def test_what_fails_of_one_rank_is_told_when_the_others_have_ended(remote: Remote) -> None:
    """They still fill blocks of ours."""
    remote.join("p.2", b"card", b"card")
    remote.fetch(1, "p.2", (0,))
    remote.agent.handle(0).problem = "gone"
    assert remote.ended() == []
    remote.agent.handle(1).has_ended = True
    assert list(remote.reads.ended()) == [Done(1, problem="gone")]
    with pytest.raises(CopyError, match="cannot be read any more"):
        remote.fetch(2, "p.2", (0,))


def test_many_reads_are_begun_a_part_at_a_time(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the mover has time for others."""
    monkeypatch.setattr(remote_reads, "MAX_READS", 2)
    remote.fetch(1, "p.1", (0, 2, 0, 2, 0))
    assert [len(handle.reads) for handle in map(remote.agent.handle, range(1))] == [2]
    assert len(remote.agent.handles) == 1
    remote.agent.handle(0).has_ended = True
    assert remote.ended() == []
    assert len(remote.agent.handles) == 2
    assert remote.ended() == []
    assert [len(remote.agent.handle(at).reads) for at in (1, 2)] == [2, 1]
    for at in (1, 2):
        remote.agent.handle(at).has_ended = True
    assert remote.ended() == [1]


def test_nothing_more_is_begun_once_a_part_has_failed(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reads, "MAX_READS", 2)
    remote.fetch(1, "p.1", (0, 2, 0, 2, 0, 2, 0))
    remote.agent.handle(0).problem = "gone"
    assert remote.ended() == []
    assert len(remote.agent.handles) == 2, "it was begun before the other was looked at"
    remote.agent.handle(1).has_ended = True
    assert list(remote.reads.ended()) == [Done(1, problem="gone")]
    assert len(remote.agent.handles) == 2


def test_each_unmap_is_answered(remote: Remote) -> None:
    remote.fetch(1, "p.1", (0,))
    assert remote.reads.leave(Unmap(2, "p.1")) is None
    assert remote.reads.leave(Unmap(3, "p.1")) is None
    remote.agent.handle(0).has_ended = True
    assert remote.ended() == [1, 2, 3]


def test_a_source_with_more_blocks_than_there_are_addresses_is_not_joined(remote: Remote) -> None:
    with pytest.raises(CopyError, match="more blocks than a GPU can hold"):
        remote.reads.join(Join(1, "d.1", "p.2", 2**60, pack_cards([b"card"])))
    assert remote.agent.joined == ["p.1/0"]


def test_what_does_not_begin_of_one_rank_is_told_when_the_others_have_ended(
    remote: Remote,
) -> None:
    remote.join("p.2", b"card", b"card")
    remote.agent.fails = "p.2/1"
    remote.fetch(1, "p.2", (0,))
    assert remote.ended() == []
    remote.agent.handle(0).has_ended = True
    assert list(remote.reads.ended()) == [Done(1, problem="cut off")]
    remote.agent.fails = "p.1/0"
    with pytest.raises(CopyError, match="cut off"):
        remote.fetch(2, "p.1", (0,))


@pytest.mark.parametrize(
    ("cards", "says"),
    [
        (pack_cards([b"card", b"bad"]), "card is bad"),
        (pack_cards([b"card"] * 3), "2 KV heads for rank 0 of 3"),
        (pack_cards([]), "no cards"),
        (pack_cards([b"card"] * 9), "no cards"),
        (b"card", "cards cannot be read"),
    ],
)
def test_a_source_that_cannot_be_joined_is_not_joined_in_part(
    remote: Remote, cards: bytes, says: str
) -> None:
    with pytest.raises(CopyError, match=says):
        remote.reads.join(Join(1, "d.1", "p.2", 4, cards))
    assert remote.agent.joined == ["p.1/0"]
    assert not remote.reads.has("p.2")
