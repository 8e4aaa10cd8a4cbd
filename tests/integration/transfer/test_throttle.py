"""The throttles of the slow-link campaign: every byte passes, at its rate, until it is lifted."""

import asyncio
import socket
import threading
import time
from pathlib import Path
from unittest.mock import AsyncMock

from shared.kv.layer_groups import GroupRange, LayerGroups
from shared.protocol import Attempt
from tests.campaigns.paced_decode import Pace, PacedMover
from tests.campaigns.throttle import BURST_S, Throttle

NUM_BYTES = 2**19
RATE = 2**19
READ_S = 30.0


def send_once(listener: socket.socket, sent: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(sent)


def test_bytes_pass_whole_and_at_the_rate_of_the_throttle() -> None:
    sent = bytes(range(256)) * (NUM_BYTES // 256)
    took_s = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Throttle(f"127.0.0.1:{listener.getsockname()[1]}") as throttle,
    ):
        for rate in (RATE, 0):
            throttle.set_rate(rate)
            before = throttle.num_passed
            sending = threading.Thread(target=send_once, args=(listener, sent))
            sending.start()
            begin_s = time.monotonic()
            assert receive(throttle.address) == sent
            took_s.append(time.monotonic() - begin_s)
            sending.join()
            assert throttle.num_passed - before == NUM_BYTES
    assert took_s[0] >= NUM_BYTES / RATE - BURST_S
    assert took_s[1] < took_s[0]


def receive(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    received = bytearray()
    with socket.create_connection((host, int(port)), READ_S) as connection:
        while part := connection.recv(2**16):
            received += part
    return bytes(received)


def test_copies_wait_for_their_rate(tmp_path: Path) -> None:
    """What the campaign sets at its end of the file holds at the worker's."""
    campaign, worker = Pace(tmp_path / "pace"), Pace(tmp_path / "pace")
    mover = AsyncMock()
    groups = LayerGroups((1, 2), NUM_BYTES // 16)

    async def copy_all(rate: float) -> float:
        campaign.set_rate(rate)
        paced = PacedMover(mover, groups, worker)
        begin_s = time.monotonic()
        for block in range(8):
            for group in range(2):
                one = GroupRange(group, 1)
                copied = await paced.fetch(Attempt("rid", 0), "p.1", [block], [block], one)
                assert copied is mover.fetch.return_value
        assert campaign.num_passed == NUM_BYTES
        return time.monotonic() - begin_s

    at_rate_s, lifted_s = (asyncio.run(copy_all(rate)) for rate in (RATE, 0))
    assert at_rate_s >= NUM_BYTES / RATE - BURST_S
    assert lifted_s < at_rate_s / 2
    assert mover.fetch.await_count == 32
