"""What a round comes to: one peer is enough, none means itself, and failures are said."""

import asyncio
from collections.abc import Mapping

import pytest

from shared.errors import BatonError, CorruptPieceError, PeerLostError, StateUnavailableError
from shared.message_parts.span import Span
from shared.protocol import Attempt
from shared.state.registry import WorkerEntry
from shared.telemetry.attributes import SPAN_TRANSFER, TRANSFER_BYTES, TRANSFER_TRANSPORT
from shared.transfer_address import NOWHERE
from shared.worker.canary.asked_worker import NoPartError
from shared.worker.canary.canary import Canary
from shared.worker.canary.peer import Peer
from shared.worker.canary.reservation import Reservation
from shared.worker.channel import Abort, Refused, Reserve, Reserved, Scheduled
from tests.unit.worker.canary.test_canary_peer import OWN, entry
from tests.unit.worker.fake_parts import FakeEngine, FakeTransport, Journal, make_work, settle

pytestmark = pytest.mark.anyio

MOVED = Span(SPAN_TRANSFER, 0, 3_000_000, 1, {TRANSFER_BYTES: 2**20, TRANSFER_TRANSPORT: "tcp"})
NOT_YET = "no KV canary has come yet"


class FakeRegistry:
    """Lists what it was given, or is away."""

    def __init__(self) -> None:
        self.entries: tuple[WorkerEntry, ...] = ()
        self.away = False

    async def register(self, entry: WorkerEntry) -> bool:
        raise AssertionError

    async def drain(self, pool: str, incarnation: str, for_s: float) -> None:
        raise AssertionError

    async def remove(self, pool: str, incarnation: str) -> None:
        raise AssertionError

    async def pools(self) -> frozenset[str]:
        raise AssertionError

    async def list(self, pool: str) -> tuple[WorkerEntry, ...]:
        if self.away:
            raise StateUnavailableError("redis is away")
        return self.entries


class PlannedCanary(Canary):
    """With each peer it ends as planned."""

    def __init__(self, outcomes: Mapping[str, Exception | None], *peers: str) -> None:
        self.registry = FakeRegistry()
        self.registry.entries = tuple(entry(name) for name in peers)
        journal = Journal()
        self.transport = FakeTransport(journal, ways=("mapped", "tcp"))
        super().__init__(OWN, self.registry, self.transport, FakeEngine(journal), 9, "")
        self.outcomes = dict(outcomes)
        self.tried: list[str] = []

    async def _move(self, peer: Peer) -> Span:
        self.tried.append(peer.name)
        outcome = self.outcomes[peer.name]
        if outcome is not None:
            raise outcome
        return MOVED


async def test_one_peer_that_hands_over_is_enough_and_once_is_enough() -> None:
    canary = PlannedCanary({"p-0": CorruptPieceError("damage"), "p-1": None}, "p-0", "p-1")
    await canary.turn()
    assert canary.awaited == ""
    tried = list(canary.tried)
    canary.outcomes["p-1"] = PeerLostError("gone")
    canary.registry.away = True
    await canary.turn()
    assert (canary.awaited, canary.tried) == ("", tried)


async def test_all_peers_failing_is_said_and_tried_again_and_no_loopback_hides_it() -> None:
    canary = PlannedCanary({"p-0": CorruptPieceError("damage"), "itself": None}, "p-0")
    await canary.turn()
    assert canary.awaited == "no KV canary comes by mapped or tcp with p-0: damage"
    await canary.turn()
    assert canary.tried == ["p-0", "p-0"]
    canary.outcomes["p-0"] = None
    await canary.turn()
    assert canary.awaited == ""


@pytest.mark.parametrize("peers", [(), ("p-0",)])
async def test_without_a_peer_that_takes_part_it_asks_itself(peers: tuple[str, ...]) -> None:
    canary = PlannedCanary({"p-0": NoPartError(), "itself": None}, *peers)
    await canary.turn()
    assert (canary.awaited, canary.tried) == ("", [*peers, "itself"])


@pytest.mark.parametrize(
    ("error", "awaited"),
    [
        (BatonError("no"), "no KV canary comes by mapped or tcp with itself: no"),
        (
            TimeoutError(),
            "no KV canary comes by mapped or tcp with itself: nothing came within 30 s",
        ),
    ],
)
async def test_a_loopback_that_fails_makes_nobody_ready(error: Exception, awaited: str) -> None:
    canary = PlannedCanary({"itself": error})
    await canary.turn()
    assert canary.awaited == awaited


async def test_a_worker_that_cannot_map_itself_waits_for_nothing() -> None:
    canary = PlannedCanary({"itself": NoPartError()})
    await canary.turn()
    assert (canary.awaited, canary.tried) == ("", ["itself"])


@pytest.mark.parametrize("way", ["nccl", "nixl", "nowhere"])
async def test_where_no_way_leads_to_itself_there_is_nothing_to_wait_for(way: str) -> None:
    canary = PlannedCanary({"itself": BatonError("never asked")})
    canary.transport.ways = (way,)
    if way == "nowhere":
        canary.transport.ways, canary.transport.address = ("tcp",), NOWHERE
    await canary.turn()
    assert (canary.awaited, canary.tried) == ("", [])


async def test_redis_that_is_away_is_waited_for() -> None:
    canary = PlannedCanary({})
    canary.registry.away = True
    with pytest.raises(StateUnavailableError):
        await canary.turn()
    assert canary.awaited == NOT_YET


WORK = make_work("canary")
OURS, ANOTHER = Reserved(WORK.attempt, (3,), 0), Reserved(Attempt("r", 0), (4,), 0)


async def test_its_blocks_are_nobody_elses_business_and_go_back_at_the_end() -> None:
    """The service of a decode worker aborts what it has not reserved."""
    journal = Journal()
    reservation = Reservation(FakeEngine(journal), 4)
    held, done = asyncio.Event(), asyncio.Event()

    async def hold() -> Reserved:
        async with reservation.of(WORK) as reserved:
            held.set()
            await done.wait()
        return reserved

    holding = asyncio.create_task(hold())
    await settle(lambda: journal.entries)
    (asked,) = journal.take("engine")
    assert isinstance(asked, Reserve)
    event = Scheduled(1, reserved=(ANOTHER, OURS))
    assert reservation.take(event) == Scheduled(1, reserved=(ANOTHER,))
    await held.wait()
    assert journal.take("engine") == []
    done.set()
    assert await holding == OURS
    assert journal.take("engine") == [Abort(WORK.attempt)]
    assert reservation.take(event) is event


async def test_an_engine_that_refuses_ends_the_wait() -> None:
    journal = Journal()
    reservation = Reservation(FakeEngine(journal), 4)

    async def reserve() -> None:
        async with reservation.of(WORK):
            raise AssertionError("there is no block")

    reserving = asyncio.create_task(reserve())
    await settle(lambda: journal.entries)
    refused = Refused(WORK.attempt, "too long")
    assert reservation.take(refused) is refused
    with pytest.raises(BatonError, match="too long"):
        await reserving
    assert journal.take("engine")[-1] == Abort(WORK.attempt)
