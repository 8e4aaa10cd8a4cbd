"""A gateway process, a Redis of its own and mock workers: what the benchmark measures."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from services.cli.bench.gateway.mock_workers import MockSetup
from services.cli.cluster.ports import reserve_port
from shared.errors import BatonError
from shared.model.checkpoint import load_checkpoint
from shared.state.embedded import EmbeddedRedis

HOST = "127.0.0.1"
READY_LIMIT_S = 30.0
STOP_LIMIT_S = 10.0
WORDS = (" the", " and", " a", " of", " to")
_POLL_S = 0.05


class MeasuredCell:
    """One gateway and its mock workers, running."""

    def __init__(
        self,
        port: int,
        model: str,
        redis: EmbeddedRedis,
        gateway: "subprocess.Popen[bytes]",
        workers: "subprocess.Popen[str]",
    ) -> None:
        self.port = port
        self.model = model
        self.redis = redis
        self.gateway_pid = gateway.pid
        self.workers_pid = workers.pid
        self.token_text = ""
        """of the one token that all answers are made of"""
        self._workers = workers
        self._connection = http.client.HTTPConnection(HOST, port, timeout=READY_LIMIT_S)

    def ask(self, path: str, body: object = None) -> tuple[int, dict[str, Any], str]:
        """Status, JSON and request id of a small request, on one kept connection."""
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
        self._connection.request(method, path, content, {"content-type": "application/json"})
        response = self._connection.getresponse()
        text = response.read()
        value = json.loads(text) if text.startswith(b"{") else {}
        return response.status, value, response.headers.get("x-request-id", "")

    def complete(self, prompt: Sequence[int], max_tokens: int) -> str:
        """One whole answer; returns its request id."""
        fields = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        body = {"model": self.model, "prompt": list(prompt), **fields}
        status, answer, rid = self.ask("/v1/completions", body)
        if status != 200:
            raise BatonError(f"the gateway answered {status}: {answer}")
        return rid

    def tell_workers(self, **command: Any) -> None:
        """Returns when they have obeyed."""
        assert self._workers.stdin is not None
        assert self._workers.stdout is not None
        self._workers.stdin.write(json.dumps(command) + "\n")
        self._workers.stdin.flush()
        if self._workers.stdout.readline() != "ok\n":
            raise BatonError("the mock workers ended")

    def sent_times(self) -> dict[str, list[int]]:
        """When each token was sent since the last call, ns, by request."""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            self.tell_workers(dump=file.name)
            times: dict[str, list[int]] = json.loads(Path(file.name).read_text())
        return times

    def choose_token(self) -> None:
        """A token whose text shows how many of it a chunk holds."""
        for word in WORDS:
            status, answer, _ = self.ask("/tokenize", {"prompt": f"one{word}"})
            if status != 200:
                raise BatonError(f"/tokenize answered {status}: {answer}")
            token_id = answer["tokens"][-1]
            _, back, _ = self.ask("/detokenize", {"tokens": [token_id] * 3})
            if back.get("prompt") == word * 3:
                self.tell_workers(token_id=token_id)
                self.token_text = word
                return
        raise BatonError(f"{self.model}: no common word is one token; use --model demo")

    def wait_ready(self, num_workers: int) -> None:
        deadline_s = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if len(self.ask("/v1/baton/status")[1].get("workers", ())) == num_workers:
                    return
            self._connection.close()
            time.sleep(_POLL_S)
        raise BatonError("the gateway did not get ready; try `baton serve gateway` by itself")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def running_cell(model: str, num_decode: int) -> Iterator[MeasuredCell]:
    """Starts everything and stops it; nothing listens beyond this machine."""
    with (
        EmbeddedRedis() as redis,
        reserve_port(HOST, 0) as holder,
        tempfile.TemporaryFile() as log,
    ):
        port = holder.getsockname()[1]
        gateway = _start_gateway(port, model, redis.url, log)
        workers = _start_workers(MockSetup(redis.url, model, num_decode, os.getpid()), log)
        cell = MeasuredCell(port, load_checkpoint(model).name, redis, gateway, workers)
        try:
            cell.wait_ready(1 + num_decode)
            cell.choose_token()
            yield cell
        except (BatonError, OSError) as error:
            log.seek(0)
            tail = log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise BatonError(f"{error} {''.join(tail)}") from error
        finally:
            cell.close()
            for process in (gateway, workers):
                process.terminate()
            for process in (gateway, workers):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_LIMIT_S)
                process.kill()
                process.wait()
            for pipe in (workers.stdin, workers.stdout):
                assert pipe is not None
                pipe.close()


def _start_gateway(
    port: int, model: str, redis_url: str, log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    flags = {
        "--redis": redis_url,
        "--model": model,
        "--port": str(port),
        "--parent-pid": str(os.getpid()),
        "--max-live-requests": "4096",
        "--device": "cpu",
        "--dtype": "float32",
        "--drain-s": "0",
        "--log-level": "error",
    }
    words = [word for pair in flags.items() for word in pair]
    command = [sys.executable, "-m", "services.cli", "serve", "gateway", *words]
    return subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 ourselves


def _start_workers(setup: MockSetup, log: IO[bytes]) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli.bench.gateway.mock_workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(setup.line())
    process.stdin.flush()
    return process
