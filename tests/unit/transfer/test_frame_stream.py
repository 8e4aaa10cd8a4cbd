"""One connection: other tasks of the loop go on while blocks pass through it."""

import asyncio
import random
import socket

import pytest

from shared.kv.columns import pack_ids, pack_words
from shared.transfer import frame_stream
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Blocks

pytestmark = pytest.mark.anyio

NUM_BYTES = 6 * 2**20 + 5
SIZES = (2**20 + 3, 1, 300 * 2**10, 17)
"""of the buffers that a payload is cut into, again and again"""


def cut(content: bytearray) -> list[memoryview]:
    views, start = [], 0
    for turn in range(NUM_BYTES):
        views.append(memoryview(content)[start : start + SIZES[turn % len(SIZES)]])
        start += len(views[-1])
        if start == NUM_BYTES:
            break
    return views


async def moved(monkeypatch: pytest.MonkeyPatch) -> tuple[bool, list[int]]:
    """Send a payload through a socket that holds all of it; whether it arrived, and how many bytes
    moved between two turns of another task."""
    steps: list[int] = []
    advance = frame_stream._advance

    def noted(left: list[memoryview], num_bytes: int) -> None:
        steps[-1] += num_bytes
        advance(left, num_bytes)

    async def other() -> None:
        while True:
            steps.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(frame_stream, "_advance", noted)
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * NUM_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * NUM_BYTES)
    sender, receiver = FrameStream(ours, 5.0), FrameStream(theirs, 5.0)
    sent, received = bytearray(random.Random(3).randbytes(NUM_BYTES)), bytearray(NUM_BYTES)  # noqa: S311
    ticking = asyncio.create_task(other())
    await asyncio.sleep(0)
    sending = asyncio.create_task(sender.send(Blocks(0, pack_ids([1]), pack_words([1])), cut(sent)))
    _, payload_bytes = await receiver.receive()
    await receiver.receive_into(cut(received))
    await sending
    ticking.cancel()
    sender.close()
    receiver.close()
    return payload_bytes == NUM_BYTES and sent == received, steps


async def test_a_payload_arrives_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, steps = await moved(monkeypatch)
    assert arrived
    assert max(steps) <= 2 * 2 * frame_stream._TURN_BYTES  # both ends in one loop


async def test_large_turns_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    small = frame_stream._TURN_BYTES
    monkeypatch.setattr(frame_stream, "_TURN_BYTES", 2**30)
    arrived, steps = await moved(monkeypatch)
    assert arrived and max(steps) > 2 * 2 * small
