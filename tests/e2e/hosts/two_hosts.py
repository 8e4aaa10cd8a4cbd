"""A cell whose prefill worker is on another host, over a link that is slow, far and unsteady:
`two_hosts FOLDER`, with a network of one's own. Prints one JSON line.

    decode --> proxy: DELAY_S each way, stands still for STALL_S now and then
                 --> link of LINK_MBIT --> prefill
    gateway ------> the same link -------> prefill
"""

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from shared.state.embedded import EmbeddedRedis
from tests.e2e.cluster import Cell, Cluster, Stream, drawn_bodies
from tests.e2e.hosts.namespaces import THERE, other_host

LINK_MBIT = 100
DELAY_S, STALL_S = 0.005, 0.2
STALL_EVERY_S = (0.5, 2.0)
TRANSFER_PORT = 7001
NUM_REQUESTS, NUM_AT_ONCE, NUM_TOKENS = 48, 8, 12
FLAGS = ("--kv-blocks", "2048", "--transport", "tcp")
BYTES_MOVED = "baton_kv_transfer_bytes_total"


class FarProxy:
    """Forwards to the prefill worker's transfer port."""

    def __init__(self) -> None:
        self.port = 0
        self.num_stalls = 0
        self._moving = asyncio.Event()
        self._listening = threading.Event()

    def start(self) -> None:
        """In a thread of its own; returns once it listens."""
        threading.Thread(target=asyncio.run, args=(self._run(),), daemon=True).start()
        assert self._listening.wait(10)

    async def _run(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        rng = random.Random(3)  # noqa: S311
        while True:
            self._moving.set()
            await asyncio.sleep(rng.uniform(*STALL_EVERY_S))
            self._moving.clear()
            self.num_stalls += 1
            await asyncio.sleep(STALL_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(THERE, TRANSFER_PORT)
        try:
            await asyncio.gather(
                self._forward(reader, far_writer), self._forward(far_reader, writer)
            )
        except OSError:
            pass  # one end left; so does the other
        finally:
            for each in (far_writer, writer):
                each.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def take() -> None:
            try:
                while chunk := await reader.read(2**16):
                    await on_the_way.put((time.monotonic() + DELAY_S, chunk))
            finally:
                await on_the_way.put((time.monotonic() + DELAY_S, b""))

        taking = asyncio.create_task(take())
        while True:
            due_s, chunk = await on_the_way.get()
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await self._moving.wait()
            if not chunk:
                break
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
        await taking


def ask(cluster: Cluster, bodies: Sequence[dict[str, Any]]) -> list[Stream]:
    """A few at a time: more would be refused, as the link is slow."""
    turns = range(0, len(bodies), NUM_AT_ONCE)
    return [
        seen for start in turns for seen in cluster.answers(bodies[start : start + NUM_AT_ONCE])
    ]


def main(folder: Path) -> None:
    bodies = drawn_bodies(NUM_REQUESTS, NUM_TOKENS, 11, lambda rng: rng.randrange(100, 700))
    proxy = FarProxy()
    with (
        other_host(LINK_MBIT) as far,
        EmbeddedRedis() as server,
        closing(Cell(folder, server)) as cell,
    ):
        proxy.start()
        flags = ("--host", THERE, "--transfer-port", str(TRANSFER_PORT), *FLAGS)
        advertised = ("--transfer-advertise", f"127.0.0.1:{proxy.port}")
        cell.serve("prefill", *flags, *advertised, prefix=far.prefix)
        cell.serve("decode", *FLAGS)
        with cell.gateway("gateway", "--topology", "pd", num_workers=2) as cluster:
            start_s = time.monotonic()
            seen = ask(cluster, bodies)
            seconds = time.monotonic() - start_s
            num_bytes, local = cluster.metric(BYTES_MOVED), cluster.unwanted_local_prefill()
            cluster.wait_blocks_back()
    with EmbeddedRedis() as server, closing(Cell(folder, server)) as cell:
        cell.serve("decode", "--kv-blocks", "2048", name="alone")
        with cell.gateway("gateway-of-one", "--topology", "agg", num_workers=1) as cluster:
            wanted = [stream.answer for stream in ask(cluster, bodies)]
    pairs = zip(seen, wanted, strict=True)
    line = {
        "failed": [stream.error for stream in seen if not stream.complete],
        "wrong": sum(stream.complete and stream.answer != answer for stream, answer in pairs),
        "local": local,
        "stalls": proxy.num_stalls,
        "seconds": seconds,
        "num_bytes": num_bytes,
    }
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
