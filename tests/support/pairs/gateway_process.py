"""A gateway as `baton serve` runs it: a real process, asked over HTTP."""

import http.client
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.pairs.worker_process import ROOT

NUM_TOKENS = 60
JSON = {"content-type": "application/json"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class GatewayProcess:
    """`baton serve gateway` with its defaults, as the checkout at `root` has it."""

    def __init__(self, redis_url: str, log_path: Path, root: Path = ROOT) -> None:
        self.log_path = log_path
        self.port = free_port()
        command = [sys.executable, "-m", "services.cli", "serve", "gateway"]
        command += ["--redis", redis_url, "--port", str(self.port)]
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=root, stderr=log)  # noqa: S603

    def get(self, path: str) -> tuple[int, Any] | None:
        """Status and body; None while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except OSError:
            return None
        finally:
            connection.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool | None:
        answer = self.get("/ready")
        return True if answer is not None and answer[0] == 200 else None

    def worker_incs(self) -> list[str]:
        answer = self.get("/v1/baton/status")
        assert answer is not None
        return [worker["incarnation"] for worker in answer[1]["workers"]]

    def stream(self, prompt: str = "Once") -> tuple[str, int, float]:
        """Request id, tokens and the longest gap between two chunks, in seconds."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = {"model": "demo", "prompt": prompt, "max_tokens": NUM_TOKENS, "stream": True}
        body |= {"ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        num_tokens, gap_s, before_s = 0, 0.0, time.monotonic()
        for line in answer:
            if line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage")
                num_tokens = usage["completion_tokens"] if usage else num_tokens
            gap_s, before_s = max(gap_s, time.monotonic() - before_s), time.monotonic()
        connection.close()
        return answer.headers["x-request-id"], num_tokens, gap_s

    def kill(self) -> None:
        """End of the test: nothing is left."""
        self.process.kill()
        self.process.wait()
