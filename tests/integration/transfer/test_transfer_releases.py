"""Hand-overs between workers of two releases: prefill the newer one, or decode."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from shared.challenge import Challenge, Versions
from shared.errors import CorruptPieceError, PeerLostError
from shared.transfer import pull, readers, terms
from shared.transfer.frame_stream import FrameStream, Moved
from shared.transfer.frames import Open, Seal, ShortSeal, Watermark
from tests.support.next_release import NEXT
from tests.support.pairs.transfer_pair import ATTEMPT, RUN, TICKET, Kind, Pair

pytestmark = pytest.mark.anyio

HINT: Any = dataclasses.make_dataclass("Hint", [("text", object)])("a kind that is not known")


def grown(frame: Any) -> Any:
    """As a later release says it: with one more field."""
    names = [item.name for item in dataclasses.fields(frame)]
    kind = dataclasses.make_dataclass(type(frame).__name__, [(n, object) for n in [*names, "more"]])
    return kind(*(getattr(frame, name) for name in names), ["more"])


def plant_next_release(patch: pytest.MonkeyPatch, *, decode: bool) -> set[int]:
    """One side says more in each frame, and something unknown before it. Returns the versions that
    were settled on."""
    newer: set[FrameStream] = set()
    settled: set[int] = set()
    introduce, send = FrameStream.introduce, FrameStream.send

    async def note(stream: FrameStream, challenge: Challenge) -> None:
        await introduce(stream, challenge)
        settled.add(challenge.version)
        if challenge._dials == decode:
            newer.add(stream)

    async def say_more(
        stream: FrameStream,
        frame: Any,
        payload: Sequence[memoryview] = (),
        moved: Moved | None = None,
    ) -> None:
        if stream in newer:
            await send(stream, HINT)
        await send(stream, grown(frame) if stream in newer else frame, payload, moved)

    patch.setattr(terms if decode else readers, "SPOKEN", NEXT)
    patch.setattr(FrameStream, "introduce", note)
    patch.setattr(FrameStream, "send", say_more)
    return settled


@pytest.mark.parametrize("kind", ["tcp", "mapped", "auto"])
@pytest.mark.parametrize("decode", [True, False], ids=["decode", "prefill"])
async def test_blocks_go_over_whichever_side_is_the_newer_one(
    kind: Kind, decode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = plant_next_release(monkeypatch, decode=decode)
    async with Pair(kind) as pair:
        offer = pair.p.transport.offer(ATTEMPT, TICKET)
        pull = pair.pull(4)
        offer.publish(pair.p.piece(0, 3, 5))
        offer.publish(pair.p.piece(2, 8, 2))
        offer.seal(RUN)
        pulled = await pull
        assert pulled.run == RUN
        for logical, block_id in enumerate((3, 5, 8, 2)):
            assert pair.received(logical) == bytes(pair.p.memory.block(block_id))
        await pair.p.changed.wait()
        assert pair.p.released == [ATTEMPT]
    assert settled == {NEXT.oldest}


async def test_a_pull_without_a_common_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "SPOKEN", Versions(NEXT.newest, NEXT.newest + 1))
    async with Pair("tcp") as pair:
        pair.p.transport.offer(ATTEMPT, TICKET)
        with pytest.raises(PeerLostError, match=r"peer speaks version .*: upgrade one"):
            await pair.pull(2)


async def test_an_unknown_frame_with_a_payload_ends_the_pull(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How much of it there is to skip, only its sender knows."""
    send = FrameStream.send

    async def send_payload(stream: FrameStream, frame: Any, *rest: Any) -> None:
        if type(frame).__name__ == "Opened":
            await send(stream, HINT, [memoryview(b"bytes")])
        await send(stream, frame, *rest)

    monkeypatch.setattr(FrameStream, "send", send_payload)
    async with Pair("tcp") as pair:
        pair.p.transport.offer(ATTEMPT, TICKET)
        with pytest.raises(CorruptPieceError, match="unknown message 'hint'"):
            await pair.pull(2)


def note_sent(patch: pytest.MonkeyPatch, *, lost: type | None = None) -> list[type]:
    """Kinds of all frames that are sent; the first one of kind `lost` never is."""
    kinds: list[type] = []
    send = FrameStream.send

    async def note(stream: FrameStream, frame: Any, *rest: Any) -> None:
        kinds.append(type(frame))
        if type(frame) is not lost or kinds.count(lost) > 1:
            await send(stream, frame, *rest)

    patch.setattr(FrameStream, "send", note)
    return kinds


async def hand_over(pair: Pair) -> None:
    """Four blocks in two pieces, of which the second one comes again under other tags."""
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    pulling = pair.pull(4)
    for first, blocks in ((0, (3, 5)), (2, (8, 2)), (2, (9, 6))):
        offer.publish(pair.p.piece(first, *blocks))
    offer.seal(RUN)
    assert (await pulling).run == RUN
    for logical, block_id in enumerate((3, 5, 9, 6)):
        assert pair.received(logical) == bytes(pair.p.memory.block(block_id))


@pytest.mark.parametrize("kind", ["tcp", "mapped"])
@pytest.mark.parametrize("takes", [True, False])
async def test_a_reader_is_told_the_manifest_again_unless_it_knows_better(
    kind: Kind, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*given: Any, takes_short_seal: bool) -> Open:
        return dataclasses.replace(Open(*given), takes_short_seal=takes_short_seal and takes)

    monkeypatch.setattr(pull, "Open", opened)
    sent = note_sent(monkeypatch)
    async with Pair(kind) as pair:
        await hand_over(pair)
    assert (sent.count(ShortSeal), sent.count(Seal)) == (int(takes), int(not takes))


async def test_a_watermark_that_never_came_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    note_sent(monkeypatch, lost=Watermark)
    async with Pair("tcp") as pair:
        with pytest.raises(CorruptPieceError, match="2 of 3 watermarks came"):
            await hand_over(pair)
