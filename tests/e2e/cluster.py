"""A real `baton up` for tests: processes, sockets, Redis; and a client that reads its streams."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from shared.state.embedded import EmbeddedRedis
from tests.e2e.wire import free_port

READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
BATON = (sys.executable, str(Path(sys.executable).with_name("baton")))


@dataclass
class Stream:
    """What a client saw of one streamed answer."""

    status: int = 0
    text: str = ""
    tokens: list[str] = field(default_factory=list)
    """with their log-probabilities and places in the text, where `logprobs` was asked for"""
    logprobs: list[float] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    """[DONE] arrived"""
    rid: str = ""
    num_chunks: int = 0
    first_s: float = 0.0
    chunk_times_s: list[float] = field(default_factory=list)

    @property
    def answer(self) -> tuple[object, ...]:
        """What two runs of one request must have in common, to the bit."""
        usage = {k: v for k, v in (self.usage or {}).items() if k != "prompt_tokens_details"}
        return self.text, self.tokens, self.logprobs, self.offsets, self.finish_reason, usage

    @property
    def complete(self) -> bool:
        """Status 200, a finish reason, usage that counts the tokens, [DONE]; nothing else."""
        counted = (self.usage or {}).get("completion_tokens")
        whole = self.status == 200 and self.done and self.finish_reason is not None
        return whole and self.error is None and counted == len(self.tokens)


class Cluster:
    """One running `baton up`."""

    def __init__(self, url: str, supervisor: subprocess.Popen[bytes], log: Path) -> None:
        self.url = url
        self.supervisor = supervisor
        self.log = log
        self.client = httpx.Client(base_url=url, timeout=30, verify=False)  # noqa: S501

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = self.client.get("/v1/baton/status").json()
        return body

    def workers(self, role: str | None = None) -> list[dict[str, Any]]:
        return [w for w in self.status()["workers"] if role in (None, w["role"])]

    def receipt(self, rid: str) -> dict[str, Any]:
        response = self.client.get(f"/v1/baton/requests/{rid}")
        response.raise_for_status()
        body: dict[str, Any] = response.json()
        return body

    def metric(self, name: str) -> float:
        """Sum of all samples of a metric; 0 when it has none."""
        return sum(self.samples(name).values())

    def samples(self, name: str) -> dict[str, float]:
        """labels, as /metrics writes them -> value, of all samples of a metric."""
        text = self.client.get("/metrics").text
        pattern = rf"^{re.escape(name)}(?:{{([^}}]*)}})? (\S+)$"
        return {labels: float(value) for labels, value in re.findall(pattern, text, re.MULTILINE)}

    def unwanted_local_prefill(self) -> dict[str, float]:
        """Reason -> prompt tokens that decode workers computed for it; none without a fault. That
        a link is slow is no fault where the machine is busy with something else."""
        by_reason = self.samples("baton_local_prefill_tokens_total")
        del by_reason['reason="slow_link"']
        return {reason: tokens for reason, tokens in by_reason.items() if tokens}

    def wait(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Poll until true; AssertionError with the log's end otherwise."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError("condition not met; log ends:\n" + self.log_tail())
            time.sleep(0.02)

    def wait_blocks_back(self, timeout_s: float = 10.0) -> None:
        """No block is held anywhere, and the counts add up."""

        def idle() -> bool:
            kv = [worker["kv"] for worker in self.workers()]
            assert all(k["free"] + k["cached"] + k["held"] == k["total"] for k in kv)
            return all(k["held"] == 0 for k in kv)

        self.wait(idle, timeout_s)

    def log_tail(self, num_lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])

    def streams(self, bodies: Sequence[dict[str, Any]]) -> "Streams":
        """Open all of them at once and read them in a thread."""
        return Streams(self.url, [{"model": self.model(), **body} for body in bodies])

    def answers(self, bodies: Sequence[dict[str, Any]], timeout_s: float = 120) -> list[Stream]:
        """Their streams, read to the end."""
        with self.streams(bodies) as streams:
            return streams.wait(timeout_s)

    def answer(self, body: dict[str, Any], timeout_s: float = 120) -> Stream:
        return self.answers([body], timeout_s)[0]

    @property
    def gateway(self) -> psutil.Process:
        children = psutil.Process(self.supervisor.pid).children()
        (found,) = (child for child in children if "gateway" in child.cmdline())
        return found

    def model(self) -> str:
        if not hasattr(self, "_model"):
            self._model: str = self.status()["model"]
        return self._model

    def stop(self) -> int:
        """SIGTERM to the supervisor; its exit status. No process of it may be left."""
        family = process_family(self.supervisor.pid)
        self.supervisor.send_signal(signal.SIGTERM)
        status = self.supervisor.wait(STOP_TIMEOUT_S)
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive, f"left running: {[p.cmdline() for p in alive if p.is_running()]}"
        return status


def process_family(pid: int) -> list[psutil.Process]:
    """A process and everything it started."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


@contextmanager
def running(tmp_path: Path, *flags: str, **environment: str) -> Iterator[Cluster]:
    """`baton up` on a free port; stopped, and shown to leave nothing, at the end. A
    `baton down --all` elsewhere on the machine does not see it."""
    log = tmp_path / "up.log"
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), **environment}
    command = [*BATON, "up", "--port", "0", *flags]
    with log.open("wb") as sink:
        supervisor = subprocess.Popen(  # noqa: S603
            command, stdout=sink, stderr=subprocess.STDOUT, env=environment
        )
    try:
        cluster = Cluster(_ready_url(supervisor, log), supervisor, log)
        with cluster.client:
            yield cluster
        if supervisor.poll() is None:
            assert cluster.stop() == 0, cluster.log_tail()
    finally:
        if supervisor.poll() is None:
            supervisor.kill()
            supervisor.wait()


def _ready_url(supervisor: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and supervisor.poll() is None:
        found = re.search(r"^ready (http://\S+)$", log.read_text(errors="replace"), re.MULTILINE)
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError("`baton up` did not get ready:\n" + log.read_text(errors="replace"))


class Cell:
    """Processes as pods run them, each started as `baton serve`, and a Redis of their own."""

    def __init__(self, folder: Path, redis: EmbeddedRedis) -> None:
        self.redis = redis
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._flags: dict[str, tuple[str, ...]] = {}

    def serve(self, role: str, *flags: str, name: str = "", prefix: tuple[str, ...] = ()) -> None:
        """`prefix`: of the command."""
        name = name or role
        self._flags[name] = flags
        command = [*prefix, *BATON, "serve", role, "--redis", self.redis.url, *flags]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def stop(self, name: str, timeout_s: float = 60.0) -> float:
        """SIGTERM; seconds until it has ended, which it does well."""
        start_s, process = time.monotonic(), self._processes[name]
        process.terminate()
        assert process.wait(timeout_s) == 0
        return time.monotonic() - start_s

    def stop_together(self, names: Sequence[str], timeout_s: float = 120.0) -> None:
        """SIGTERM to all at once; each ends well."""
        for name in names:
            self._processes[name].terminate()
        assert [self._processes[name].wait(timeout_s) for name in names] == [0] * len(names)

    def serve_again(self, role: str, name: str = "") -> None:
        self.serve(role, *self._flags[name or role], name=name)

    def exited(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(40)

    @contextmanager
    def gateway(self, name: str, *flags: str, num_workers: int) -> Iterator[Cluster]:
        """Once it is ready and has that number of workers."""
        with free_port() as port:
            self.serve("gateway", "--port", str(port), *flags, name=name)
            url, log = f"http://127.0.0.1:{port}", self._folder / f"{name}.log"
            cluster = Cluster(url, self._processes[name], log)
            cluster.wait(lambda: is_ready(cluster, num_workers), 90)
            yield cluster
            cluster.client.close()


def is_ready(cluster: Cluster, num_workers: int) -> bool:
    try:
        is_ready = bool(cluster.client.get("/ready").is_success)
        return is_ready and len(cluster.workers()) == num_workers
    except httpx.TransportError:
        return False


def drawn_bodies(
    num: int, max_tokens: int, seed: int, length: Callable[[random.Random], int]
) -> list[dict[str, Any]]:
    """Of /v1/completions, with prompts of drawn ids; half greedy, half seeded sampling."""
    rng = random.Random(seed)  # noqa: S311
    return [
        {
            "prompt": [rng.randrange(100, 1000) for _ in range(length(rng))],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0.9 * (at % 2),
            "seed": at,
        }
        for at in range(num)
    ]


class Streams:
    """Streamed answers being read in a thread; `seen` grows as they arrive."""

    def __init__(self, url: str, bodies: Sequence[dict[str, Any]]) -> None:
        self.seen = [Stream() for _ in bodies]
        self._url = url
        self._bodies = bodies
        self._loop = asyncio.new_event_loop()
        self._readers: list[asyncio.Task[None]] = []
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for at in range(len(self._readers)):
            if self._thread.is_alive():
                self.close(at)
        self._thread.join(10)
        if not self._thread.is_alive():
            self._loop.close()

    def close(self, at: int) -> None:
        """The client of one stream leaves."""
        self._loop.call_soon_threadsafe(self._readers[at].cancel)

    def wait(self, timeout_s: float) -> list[Stream]:
        """All of them, ended."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"streams hang: {self.seen}"
        assert not self._failures, self._failures
        return self.seen

    def wait_tokens(self, num_tokens: int, num_streams: int, timeout_s: float = 60) -> None:
        """Until `num_streams` streams have `num_tokens` tokens each."""
        deadline_s = time.monotonic() + timeout_s
        while sum(len(seen.tokens) >= num_tokens for seen in self.seen) < num_streams:
            assert time.monotonic() < deadline_s, self.seen
            assert self._thread.is_alive(), self.seen
            time.sleep(0.002)

    def _run(self) -> None:
        self._loop.run_until_complete(self._read_all())

    async def _read_all(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self._url,
            timeout=300,
            limits=limits,
            verify=False,  # noqa: S501
        ) as client:
            self._readers = [
                asyncio.ensure_future(_read(client, body, seen))
                for body, seen in zip(self._bodies, self.seen, strict=True)
            ]
            results = await asyncio.gather(*self._readers, return_exceptions=True)
        left = asyncio.CancelledError
        self._failures = [
            item for item in results if item is not None and not isinstance(item, left)
        ]


async def _read(client: httpx.AsyncClient, body: dict[str, Any], seen: Stream) -> None:
    """One streamed answer of /v1/completions."""
    body = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 1, **body}
    start_s = time.monotonic()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        seen.status = response.status_code
        if response.status_code != 200:
            seen.error = json.loads(await response.aread())["error"]
            return
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                assert not seen.done, f"after [DONE]: {line}"
                note(seen, line.removeprefix("data: "), time.monotonic() - start_s)


def note(seen: Stream, event: str, at_s: float) -> None:
    """One event of a streamed answer."""
    if event == "[DONE]":
        seen.done = True
        return
    chunk = json.loads(event)
    assert seen.error is None, f"after an error event: {event}"
    if "error" in chunk:
        seen.error = chunk["error"]
        return
    seen.rid = chunk["id"].partition("-")[2]
    seen.usage = chunk.get("usage") or seen.usage
    for choice in chunk["choices"]:
        assert seen.finish_reason is None, f"after the finish reason: {event}"
        seen.num_chunks += 1
        seen.first_s = seen.first_s or at_s
        seen.chunk_times_s.append(at_s)
        seen.text += choice["text"]
        seen.finish_reason = choice["finish_reason"]
        if logprobs := choice["logprobs"]:
            seen.tokens += logprobs["tokens"]
            seen.logprobs += logprobs["token_logprobs"]
            seen.offsets += logprobs["text_offset"]
