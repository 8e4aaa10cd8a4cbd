"""A plan arrives as it was sent; what is no plan is refused."""

import socket
import struct
import threading
from dataclasses import replace

import numpy as np
import pytest

from shared.engine.rank_processes.plan_channel import receive_plan, send_meeting, send_plan
from shared.engine.sampling.score_plan import ScorePlan
from shared.engine.scheduling.batch import BatchShape, HostBatch, packed_length
from shared.errors import ProtocolError


def _batch(num_tokens: int, width: int) -> HostBatch:
    shape = BatchShape(num_tokens, num_tokens, num_tokens, 1, width)
    numbers = np.arange(packed_length(shape), dtype=np.int32)
    return HostBatch(shape, numbers - 3)


def _plain(batch: HostBatch) -> list[object]:
    plan = batch.scores
    return [] if plan is None else [plan.rows.tolist(), plan.token_ids.tolist(), plan.num_top]


def test_plans_arrive_whole_and_in_order_at_every_follower() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    rows = np.arange(40, dtype=np.int32)
    scored = replace(_batch(50, 2), scores=ScorePlan(rows, rows + 7, num_top=3))
    sent = [_batch(1, 1), _batch(300, 700), scored, _batch(0, 0), _batch(2, 5)]

    def send() -> None:
        for batch in sent:
            send_plan([ours for ours, _ in pairs], batch)

    received: list[list[HostBatch | None]] = [[] for _ in pairs]

    def receive(number: int) -> None:
        received[number] += [receive_plan(pairs[number][1]) for _ in sent]

    threads = [threading.Thread(target=send)]
    threads += [threading.Thread(target=receive, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for batches in received:
        for arrived, batch in zip(batches, sent, strict=True):
            assert arrived is not None and arrived.shape == batch.shape
            assert np.array_equal(arrived.packed, batch.packed)
            assert _plain(arrived) == _plain(batch)
    for pair in pairs:
        for end in pair:
            end.close()


def test_followers_are_called_to_meet() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_meeting([ours])
        send_plan([ours], _batch(1, 1))
        assert receive_plan(theirs) is None
        assert receive_plan(theirs) is not None


def test_a_closed_channel_ends_the_stream() -> None:
    ours, theirs = socket.socketpair()
    send_plan([ours], _batch(1, 1))
    ours.close()
    with theirs:
        receive_plan(theirs)
        with pytest.raises(EOFError):
            receive_plan(theirs)


@pytest.mark.parametrize(
    "numbers",
    [
        (1, 1, 1, 0, 1, 6),
        (1, 1, 1, 0, -1, 6),
        (1, 1, 1, 0, 1, -7),
        (1, 1, 1, 0, 1, 2**30),
        (1, 1, 1, 0, 1, 8),
        (1, 1, 1, 0, 1, 9),
    ],
)
def test_numbers_that_do_not_fit_are_refused(numbers: tuple[int, ...]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("=6i", *numbers))
        with pytest.raises(ProtocolError, match="says its shape is"):
            receive_plan(theirs)
