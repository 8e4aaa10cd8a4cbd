"""The throttle of the slow-link campaign: every byte passes, at its rate, until it is lifted."""

import socket
import threading
import time

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
