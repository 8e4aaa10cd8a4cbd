"""How fast this machine is now: a bare exchange between two Python processes over loopback, and
what one core computes.

The same kinds of work as a request's way through gateway and worker, and nothing of ours in it:
parse a JSON body, hash, encode, wake another process through a socket, and back. A limit in
microseconds is meant for a machine on which this takes `NOMINAL_US`; on one that is slower at
the moment, whatever the cause, it grows in proportion, and never shrinks. Likewise a limit of CPU
time, for a core that needs `NOMINAL_S` for a loop of floats and a heap.

`python -m tests.support.yardstick` prints the figure.
"""

import asyncio
import hashlib
import heapq
import json
import socket
import subprocess
import sys
import time
from typing import cast

from shared.event_loop import run_main

NOMINAL_US = 120.0
NUM_EXCHANGES = 400
NOMINAL_S = 0.015
NUM_TURNS = 40_000
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


def computing_s() -> float:
    """CPU time of the fastest of three."""
    return min(_compute_s() for _ in range(3))


def _compute_s() -> float:
    began_s = time.process_time()
    heap, total = [(float(number), number) for number in range(200)], 0.0
    for number in range(NUM_TURNS):
        first, tokens = heap[0]
        total += (total * total + first) ** 0.5 / (1 + tokens)
        heapq.heapreplace(heap, (first + number % 7, number))
    return time.process_time() - began_s


def core_slowness() -> float:
    """By what a limit of CPU time is multiplied now; at least 1."""
    return max(1.0, computing_s() / NOMINAL_S)


if __name__ == "__main__":
    if sys.argv[1:] == ["answer"]:
        sys.exit(run_main(answer()))
    sys.stdout.write(f"an exchange: {exchange_us():.0f} us, nominal {NOMINAL_US:.0f}\n")
    sys.stdout.write(f"a core: {1e3 * computing_s():.2f} ms, nominal {1e3 * NOMINAL_S:.2f}\n")
