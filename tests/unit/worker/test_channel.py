"""The channel between a worker's two processes: frames, the memory's descriptor, the ends."""

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from shared.errors import BatonError
from shared.kv.share import MAX_RANKS
from shared.protocol import Attempt
from shared.worker.channel import (
    CHANNEL_CODEC,
    Abort,
    Command,
    EngineChannel,
    Refused,
    Release,
    receive_memory,
)

A, B = Abort(Attempt("a", 0)), Release(Attempt("b", 3))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, EngineChannel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, EngineChannel(theirs)


def frame(command: Command) -> bytes:
    body = CHANNEL_CODEC.encode(command)
    return struct.pack(">I", len(body)) + body


def test_commands_arrive_whole_and_in_order(ends: tuple[socket.socket, EngineChannel]) -> None:
    ours, channel = ends
    assert channel.receive() == []
    together = frame(A) + frame(B)
    ours.sendall(together[:-1])
    assert channel.receive(None) == [A]
    assert channel.receive() == []
    ours.sendall(together[-1:])
    assert channel.receive(None) == [B]


def test_every_split_of_two_frames_gives_two_commands(
    ends: tuple[socket.socket, EngineChannel],
) -> None:
    ours, channel = ends
    together = frame(A) + frame(B)
    for cut in range(len(together)):
        ours.sendall(together[:cut])
        commands = channel.receive()
        ours.sendall(together[cut:])
        while len(commands) < 2:
            commands += channel.receive(None)
        assert commands == [A, B]


def test_an_event_is_one_frame(ends: tuple[socket.socket, EngineChannel]) -> None:
    ours, channel = ends
    channel.send(Refused(A.attempt, "no", "too_long"))
    (length,) = struct.unpack(">I", ours.recv(4))
    assert CHANNEL_CODEC.decode(ours.recv(length)) == Refused(A.attempt, "no", "too_long")


def test_the_end_of_the_io_process_ends_the_loop(
    ends: tuple[socket.socket, EngineChannel],
) -> None:
    ours, channel = ends
    ours.close()
    with pytest.raises(EOFError):
        channel.receive(None)


def test_the_memory_is_the_same_file(ends: tuple[socket.socket, EngineChannel]) -> None:
    ours, channel = ends
    fd = os.memfd_create("test")
    channel.pass_memory(fd)
    received, pools = receive_memory(ours)
    try:
        assert received != fd and os.path.sameopenfile(received, fd)
        assert not pools
    finally:
        os.close(fd)
        os.close(received)


def test_pools_that_others_map_come_along(ends: tuple[socket.socket, EngineChannel]) -> None:
    ours, channel = ends
    memory, *pools = given = [os.memfd_create(str(number)) for number in range(1 + MAX_RANKS)]
    channel.pass_memory(memory, pools)
    first, others = receive_memory(ours)
    try:
        for fd, copy in zip(given, (first, *others), strict=True):
            assert os.path.sameopenfile(fd, copy)
    finally:
        for descriptor in (*given, first, *others):
            os.close(descriptor)


def test_a_failed_start_is_told_in_the_engines_own_words(
    ends: tuple[socket.socket, EngineChannel],
) -> None:
    ours, channel = ends
    channel.pass_failure("the model is cut short: 3 of 4 bytes")
    with pytest.raises(BatonError, match="3 of 4 bytes"):
        receive_memory(ours)


def test_an_engine_that_dies_silently_is_a_failed_start() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(BatonError, match="before it was ready"):
        receive_memory(ours)
