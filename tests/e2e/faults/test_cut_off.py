"""One of two decode workers cannot reach the KV port: no request fails for it, and it gets hardly
any. It fails fast, so it always has the fewest sequences."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.e2e.cluster import Cluster, Stream, running
from tests.e2e.wire import ProxyThread, free_port
from tests.support.fakes.proxy import TcpProxy

SETTLED_S = 2.0
WATCHED_S = 4.0
NUM_CLIENTS = 4


class PickyProxy(TcpProxy):
    """On the transfer port of a prefill worker; hangs up on the processes in `refused`."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.refused: set[int] = set()
        self.num_refused = 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        if any(_has_port(pid, port) for pid in self.refused):
            self.num_refused += 1
            writer.transport.abort()
            return
        await super()._accept(reader, writer)


def _has_port(pid: int, port: int) -> bool:
    return any(item.laddr.port == port for item in psutil.Process(pid).net_connections("tcp"))


class Bed(NamedTuple):
    cluster: Cluster
    proxy: PickyProxy


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    thread = ProxyThread()
    with free_port() as port:
        proxy = PickyProxy(f"127.0.0.1:{port}")
        environment = {
            "BATON_TRANSPORT": "tcp",
            "BATON_TRANSFER_PORT": str(port),
            "BATON_TRANSFER_ADVERTISE": thread.run(proxy.start()),
        }
        folder: Path = tmp_path_factory.mktemp("cut")
        flags = ("--prefill", "1", "--decode", "2", "--kv-blocks", "512")
        with running(folder, *flags, **environment) as cluster:
            yield Bed(cluster, proxy)
        thread.run(proxy.close())
        thread.close()


def crowd(cluster: Cluster, limit_s: float, seed: int) -> list[Stream]:
    """Requests one after another from a few clients, until the time is over."""
    rng = random.Random(seed)  # noqa: S311
    deadline_s = time.monotonic() + limit_s
    seen: list[Stream] = []
    while time.monotonic() < deadline_s:
        bodies: list[dict[str, Any]] = [
            {
                "prompt": [rng.randrange(100, 1000) for _ in range(40)],
                "max_tokens": 4,
                "ignore_eos": True,
            }
            for _ in range(NUM_CLIENTS)
        ]
        seen += cluster.answers(bodies)
    return seen


def share(cluster: Cluster, streams: list[Stream], worker_id: str) -> tuple[int, int]:
    """(attempts that named this decode worker, requests that ended at it)."""
    receipts = [cluster.receipt(stream.rid) for stream in streams]
    num_attempts = sum(a["decode"] == worker_id for r in receipts for a in r["attempts"])
    return num_attempts, sum(r["workers"].get("decode") == worker_id for r in receipts)


def test_a_decode_worker_that_is_cut_off_gets_probes_only(bed: Bed) -> None:
    cluster, proxy = bed
    lame = cluster.workers("decode")[0]
    proxy.refused.add(lame["pid"])
    early = crowd(cluster, SETTLED_S, seed=1)
    assert proxy.num_refused, "nobody was cut off"
    late = crowd(cluster, WATCHED_S, seed=2)
    assert [stream for stream in early + late if not stream.complete] == []
    num_attempts, num_ended = share(cluster, late, lame["id"])
    assert num_ended == 0
    assert num_attempts <= 2, f"{num_attempts} of {len(late)}: more than the probes"
    assert cluster.metric("baton_local_prefill_tokens_total") == 0
    proxy.refused.clear()
    cluster.wait(lambda: share(cluster, crowd(cluster, 0.1, seed=3), lame["id"])[1], 20)
