"""How fast this machine is now: a bare exchange between two Python processes over loopback.

The same kinds of work as a request's way through gateway and worker, and nothing of ours in it:
parse a JSON body, hash, encode, wake another process through a socket, and back. A limit in
microseconds is meant for a machine on which this takes `NOMINAL_US`; on one that is slower at
the moment, whatever the cause, it grows in proportion, and never shrinks.

`python -m tests.support.yardstick` prints the figure.
"""

import asyncio
import hashlib
import json
import socket
import subprocess
import sys
import time
from typing import cast

from shared.event_loop import run_main

NOMINAL_US = 120.0
NUM_EXCHANGES = 400
BODY = json.dumps({"model": "demo", "prompt": list(range(200)), "max_tokens": 1}).encode()


class Answering(asyncio.Protocol):
    """Answers each body with a digest of what it holds."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        digest = b""
        for number in json.loads(data)["prompt"]:
            digest = hashlib.sha256(digest + number.to_bytes(4, "little")).digest()
        self._transport.write(digest)


async def answer() -> int:
    """Serve one connection; its port goes to stdout."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
    return 0


def exchange_us() -> float:
    """Median of the exchanges."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.yardstick", "answer"],
        stdout=subprocess.PIPE,
        text=True,
    )
    times = []
    with child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            for _ in range(NUM_EXCHANGES):
                begin_ns = time.perf_counter_ns()
                connection.sendall(BODY)
                connection.recv(64)
                times.append(time.perf_counter_ns() - begin_ns)
        child.kill()
    return sorted(times)[NUM_EXCHANGES // 2] / 1e3


def slowness() -> float:
    """By what a limit is multiplied now; at least 1."""
    return max(1.0, exchange_us() / NOMINAL_US)


if __name__ == "__main__":
    if sys.argv[1:] == ["answer"]:
        sys.exit(run_main(answer()))
    sys.stdout.write(f"{exchange_us():.0f} us, nominal {NOMINAL_US:.0f}\n")
