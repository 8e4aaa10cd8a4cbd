"""A cell as pods run it, with a throttle on the KV port of each prefill worker, or on the copies of
each decode worker."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import httpx

from shared.state.embedded import EmbeddedRedis
from tests.campaigns.paced_decode import Pace
from tests.campaigns.throttle import Throttle
from tests.e2e.cluster import BATON, Cluster
from tests.e2e.wire import free_port

READY_S = 90.0
STOP_S = 20.0
DRAIN = ("--drain-s", "1")
Transport = Literal["tcp", "mapped"]


class Link(Protocol):
    """What KV passes at a rate."""

    @property
    def num_passed(self) -> int:
        """Bytes so far."""

    def set_rate(self, bytes_per_s: float) -> None:
        """0 lifts it."""


@dataclass(frozen=True)
class SlowCell:
    cluster: Cluster
    links: Sequence[Link]

    def set_rate(self, bytes_per_s: float) -> None:
        """Of all links together; 0 lifts it."""
        for link in self.links:
            link.set_rate(bytes_per_s / len(self.links))

    @property
    def num_passed(self) -> int:
        """Bytes that have come from prefill workers to decode workers so far."""
        return sum(link.num_passed for link in self.links)


@contextmanager
def slow_cell(
    folder: Path, num_prefill: int, num_decode: int, transport: Transport = "tcp"
) -> Iterator[SlowCell]:
    """Ready, and not throttled yet."""
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis())
        stack.callback(stop_all, processes)
        links: list[Link] = []
        meet = stack.enter_context(tempfile.TemporaryDirectory(prefix="kv"))
        travel = ("--transport", transport, "--transfer-dir", meet)

        def serve(role: str, name: str, *flags: str, program: Sequence[str] = BATON) -> Path:
            command = [*program, "serve", role, "--redis", redis.url, *DRAIN, *flags]
            command += ["--parent-pid", str(os.getpid())]
            log = folder / f"{name}.log"
            with log.open("wb") as sink:
                processes.append(subprocess.Popen(command, stdout=sink, stderr=sink))  # noqa: S603
            return log

        port = stack.enter_context(free_port())
        log = serve("gateway", "gateway", "--port", str(port), "--topology", "pd")
        cluster = Cluster(f"http://127.0.0.1:{port}", processes[0], log)
        stack.enter_context(cluster.client)
        for number in range(num_prefill):
            name = ("--worker-id", f"prefill-{number}")
            flags: tuple[str, ...] = travel
            if transport == "tcp":
                kv_port = stack.enter_context(free_port())
                throttle = stack.enter_context(Throttle(f"127.0.0.1:{kv_port}"))
                links.append(throttle)
                flags += ("--transfer-port", str(kv_port), "--transfer-advertise", throttle.address)
            serve("prefill", name[1], *name, *flags)
        for number in range(num_decode):
            name = ("--worker-id", f"decode-{number}")
            program: Sequence[str] = BATON
            if transport == "mapped":
                file = folder / f"pace-{number}"
                links.append(Pace(file))
                program = (sys.executable, "-m", "tests.campaigns.paced_decode", str(file))
            serve("decode", name[1], *name, *travel, program=program)
        cluster.wait(lambda: _is_ready(cluster, num_prefill + num_decode), READY_S)
        yield SlowCell(cluster, links)


def _is_ready(cluster: Cluster, num_workers: int) -> bool:
    try:
        states = [worker["state"] for worker in cluster.workers()]
        return bool(cluster.client.get("/ready").is_success and states == ["ready"] * num_workers)
    except (httpx.TransportError, KeyError):
        return False


def stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask them all, then wait; one that does not end is killed."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
