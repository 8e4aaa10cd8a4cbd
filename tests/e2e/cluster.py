"""A real `baton up` for tests: processes, sockets, Redis; and a client that reads its streams."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0


@dataclass
class Stream:
    """What a client saw of one streamed answer."""

    status: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    """[DONE] arrived"""
    rid: str = ""
    num_chunks: int = 0
    first_s: float = 0.0
    chunk_times_s: list[float] = field(default_factory=list)


class Cluster:
    """One running `baton up`."""

    def __init__(self, url: str, supervisor: subprocess.Popen[bytes], log: Path) -> None:
        self.url = url
        self.supervisor = supervisor
        self.log = log

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = httpx.get(f"{self.url}/v1/baton/status", timeout=10).json()
        return body

    def workers(self, role: str | None = None) -> list[dict[str, Any]]:
        return [w for w in self.status()["workers"] if role in (None, w["role"])]

    def receipt(self, rid: str) -> dict[str, Any]:
        response = httpx.get(f"{self.url}/v1/baton/requests/{rid}", timeout=10)
        response.raise_for_status()
        body: dict[str, Any] = response.json()
        return body

    def metric(self, name: str) -> float:
        """Sum of all samples of a metric; 0 when it has none."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        pattern = rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$"
        return sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))

    def wait(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Poll until true; AssertionError with the log's end otherwise."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError("condition not met; log ends:\n" + self.log_tail())
            time.sleep(0.05)

    def wait_blocks_back(self, timeout_s: float = 10.0) -> None:
        """No block is held anywhere, and the counts add up."""

        def idle() -> bool:
            kv = [worker["kv"] for worker in self.workers()]
            assert all(k["free"] + k["cached"] + k["held"] == k["total"] for k in kv)
            return all(k["held"] == 0 for k in kv)

        self.wait(idle, timeout_s)

    def log_tail(self, num_lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])

    async def complete(self, prompt: str | Sequence[int], **fields: Any) -> Stream:
        """A streamed /v1/completions answer with its token ids."""
        body = {"prompt": prompt, "temperature": 0, "logprobs": 0, **fields}
        return await self.stream("/v1/completions", body)

    async def chat(self, content: str, **fields: Any) -> Stream:
        messages = [{"role": "user", "content": content}]
        return await self.stream("/v1/chat/completions", {"messages": messages, **fields})

    async def stream(self, path: str, body: dict[str, Any]) -> Stream:
        body = {"model": self.model(), "stream": True, **body}
        body.setdefault("stream_options", {"include_usage": True})
        seen = Stream()
        start_s = time.monotonic()
        async with (
            httpx.AsyncClient(timeout=httpx.Timeout(300)) as client,
            client.stream("POST", self.url + path, json=body) as response,
        ):
            seen.status = response.status_code
            if response.status_code != 200:
                seen.error = json.loads(await response.aread())["error"]
                return seen
            async for event in _events(response):
                _note(seen, event, time.monotonic() - start_s)
        return seen

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
    """`baton up` on a free port; stopped, and shown to leave nothing, at the end."""
    log = tmp_path / "up.log"
    command = [sys.executable, "-m", "services.cli", "up", "--port", "0", *flags]
    with log.open("wb") as sink:
        supervisor = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    try:
        cluster = Cluster(_ready_url(supervisor, log), supervisor, log)
        yield cluster
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


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def _note(seen: Stream, event: str, at_s: float) -> None:
    if event == "[DONE]":
        seen.done = True
        return
    chunk = json.loads(event)
    if "error" in chunk:
        seen.error = chunk["error"]
        return
    seen.rid = chunk["id"].partition("-")[2]
    seen.usage = chunk.get("usage") or seen.usage
    for choice in chunk["choices"]:
        seen.num_chunks += 1
        seen.first_s = seen.first_s or at_s
        seen.chunk_times_s.append(at_s)
        seen.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        seen.finish_reason = choice["finish_reason"] or seen.finish_reason
        logprobs = choice.get("logprobs")
        if logprobs and logprobs.get("token_ids"):
            seen.token_ids += logprobs["token_ids"]


async def gather(*jobs: Any) -> list[Any]:
    """Results in order; the first failure cancels the rest."""
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(job) for job in jobs]
    return [task.result() for task in started]
