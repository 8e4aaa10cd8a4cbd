"""A real gateway process in front of the mock workers of `baton bench gateway`, on a real Redis."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from services.cli.bench.gateway.mock_workers import MockSetup
from services.cli.bench.measure.cpu_time import cpu_time
from services.cli.cluster.ports import reserve_port

LIMIT_S = 30.0
STOP_LIMIT_S = 10.0
TOKEN_ID = 400
"""which all answers are made of; it has text"""


class MockCell:
    """One gateway and its mock workers."""

    def __init__(self, url: str, pids: Sequence[int], log: Path) -> None:
        """`pids`: of the gateway, then of the process of the workers."""
        self.url = url
        self.gateway = psutil.Process(pids[0])
        self._pids = pids
        self._log = log
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            str(address.hostname), address.port, timeout=LIMIT_S
        )

    def get(self, path: str) -> Any:
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return json.loads(body) if body.startswith(b"{") else body.decode()

    def complete(self, prompt: Sequence[int], **fields: Any) -> dict[str, Any]:
        """One whole answer on the connection that is kept open."""
        body = {"prompt": list(prompt), "temperature": 0, "ignore_eos": True, **fields}
        content = json.dumps({"model": "demo", **body})
        headers = {"content-type": "application/json"}
        self._connection.request("POST", "/v1/completions", content, headers)
        response = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    def receipt(self, answer: dict[str, Any]) -> dict[str, Any]:
        receipt: dict[str, Any] = self.get(f"/v1/baton/requests/{answer['id']}")
        return receipt

    def metric(self, name: str) -> float:
        """Sum of all samples of a metric; 0 when it has none."""
        pattern = rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$"
        return sum(map(float, re.findall(pattern, self.get("/metrics"), re.MULTILINE)))

    def cpu_s(self) -> float:
        """CPU seconds of the gateway so far."""
        return cpu_time(self.gateway.pid).total_s

    def waited_us(self) -> float:
        """For how long gateway and workers were ready to run so far, and had no core."""
        return sum(cpu_time(pid).waited_s for pid in self._pids) * 1e6

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
                self.get("/ready")
                return
            self._connection.close()
            time.sleep(0.05)
        raise AssertionError("the gateway did not get ready:\n" + self._log.read_text())

    def close(self) -> None:
        self._connection.close()


@contextmanager
def mock_cell(
    redis_url: str,
    tmp_path: Path,
    *,
    model: str = "demo",
    step_ms: float = 1.0,
    flags: Sequence[str] = (),
) -> Iterator[MockCell]:
    """A gateway with one mock prefill and one mock decode worker; all ended at the end."""
    log = tmp_path / "cell.log"
    processes: list[subprocess.Popen[bytes]] = []
    with reserve_port("127.0.0.1", 0) as holder, log.open("wb") as sink:
        port = holder.getsockname()[1]
        gateway = ["services.cli", "serve", "gateway", "--redis", redis_url, "--model", model]
        gateway += ["--port", str(port), "--max-live-requests", "4096", *flags]
        workers = ["services.cli.bench.gateway.mock_workers"]
        commands = MockSetup(redis_url, model, 1, os.getpid()).line()
        commands += json.dumps({"step_ms": step_ms, "token_id": TOKEN_ID}) + "\n"
        try:
            for arguments in (gateway, workers):
                process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-m", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=sink,
                    stderr=sink,
                )
                processes.append(process)
            stdin = processes[1].stdin
            assert stdin is not None
            stdin.write(commands.encode())
            stdin.flush()
            pids = [process.pid for process in processes]
            cell = MockCell(f"http://127.0.0.1:{port}", pids, log)
            cell.wait_ready()
            yield cell
            cell.close()
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_LIMIT_S)
                process.kill()
                assert process.stdin is not None
                process.stdin.close()
