"""A TCP proxy in a process of its own whose bytes to the client have a rate.

`python -m tests.campaigns.throttle TARGET PARENT_PID` says the address to dial instead of TARGET,
then obeys its input: `rate N` sets bytes a second (0: no limit), each `count` is answered with the
bytes that have passed to clients.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from typing import Self

from shared.process import die_with_parent

CHUNK_BYTES = 2**14
SOCKET_BYTES = 2**16
"""of kernel buffers on either side: a slow wire holds little"""
BURST_S = 0.25
"""of the rate may be made up for after the machine stood still"""


class Bucket:
    """Lets bytes pass at a rate, one waiter after the other."""

    def __init__(self) -> None:
        self.bytes_per_s = 0.0
        self.num_passed = 0
        self._due_s = 0.0
        self._turn = asyncio.Lock()

    async def take(self, num_bytes: int) -> None:
        async with self._turn:
            if self.bytes_per_s:
                now_s = time.monotonic()
                self._due_s = max(self._due_s, now_s - BURST_S) + num_bytes / self.bytes_per_s
                await asyncio.sleep(self._due_s - now_s)
            self.num_passed += num_bytes


class Proxy:
    def __init__(self, target: str, bucket: Bucket) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._bucket = bucket
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            task = asyncio.create_task(self._serve(client))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with client, _small_socket() as server:
            client.setblocking(False)
            try:
                await loop.sock_connect(server, self._target)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._copy(client, server, None))
                    both.create_task(self._copy(server, client, self._bucket))
            except* OSError:
                pass

    async def _copy(
        self, source: socket.socket, sink: socket.socket, bucket: Bucket | None
    ) -> None:
        loop = asyncio.get_running_loop()
        while chunk := await loop.sock_recv(source, CHUNK_BYTES):
            if bucket is not None:
                await bucket.take(len(chunk))
            await loop.sock_sendall(sink, chunk)
        sink.shutdown(socket.SHUT_WR)


def _small_socket() -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    return made


async def _obey(bucket: Bucket) -> None:
    """Until the input ends."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        if line.startswith(b"rate "):
            bucket.bytes_per_s = float(line.split()[1])
        else:
            _answer(bucket.num_passed)


def _answer(value: object) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


async def _main(target: str) -> None:
    with _small_socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        bucket = Bucket()
        serving = asyncio.create_task(Proxy(target, bucket).serve(listener))
        _answer(f"127.0.0.1:{listener.getsockname()[1]}")
        await _obey(bucket)
        serving.cancel()


class Throttle:
    """The proxy as its owner sees it."""

    def __init__(self, target: str) -> None:
        command = [sys.executable, "-m", "tests.campaigns.throttle", target, str(os.getpid())]
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def set_rate(self, bytes_per_s: float) -> None:
        """0 lifts it."""
        self._write(f"rate {bytes_per_s}")

    @property
    def num_passed(self) -> int:
        """Bytes to clients so far."""
        self._write("count")
        return int(self._read())

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    asyncio.run(_main(sys.argv[1]))
