"""A `baton up` process in a test: its output, its children, and its certain end."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 30.0


class FakeBaton:
    """The fake `baton` of this folder, installed in `folder` as a script of that name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "baton"
        self.script.write_text(
            f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from tests.integration.cli.fake_baton import main\nsys.exit(main())\n",
            encoding="utf-8",
        )
        self.workers = folder / "workers"
        self.workers.mkdir()
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        self.environment = {
            **os.environ,
            "FAKE_FOLDER": str(self.workers),
            "XDG_RUNTIME_DIR": str(runtime),
        }

    def command(self, *flags: str) -> list[str]:
        return [sys.executable, str(self.script), *flags]

    def run(self, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        return subprocess.run(  # noqa: S603
            self.command(*flags),
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    @contextlib.contextmanager
    def up(self, *flags: str, **environment: str) -> Iterator["UpProcess"]:
        """`baton up --port 0` with these flags; killed at the end whatever happened."""
        process = subprocess.Popen(  # noqa: S603
            self.command("up", "--port", "0", *flags),
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        running = UpProcess(process)
        try:
            yield running
        finally:
            process.kill()
            process.communicate()


class UpProcess:
    """A running `up`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._pending = b""

    def wait_line(self, start: str) -> str:
        """The rest of the next line of its output that begins with `start`."""
        assert self.process.stdout is not None
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                if line.decode().startswith(start):
                    return line.decode().removeprefix(start)
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left_s, 0))
            received = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert received, f"no line {start!r}; stderr: {self._errors()}"
            self._pending += received

    def wait_ready(self) -> str:
        """Its URL."""
        return self.wait_line("ready ").strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def descendants(self) -> list[int]:
        """Every process below it, children first."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in task.read_text().split()]
        return found[1:]

    def _errors(self) -> str:
        assert self.process.stderr is not None
        self.process.kill()
        return self.process.stderr.read().decode()


def workers(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/v1/baton/status", timeout=LIMIT_S) as answer:  # noqa: S310
        found: list[dict[str, Any]] = json.load(answer)["workers"]
        return sorted(found, key=lambda worker: str(worker["id"]))


def command_line(pid: int) -> list[str]:
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return []
    return content.decode().rstrip("\0").split("\0")


def alive(pid: int) -> bool:
    """Running, not merely unreaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Polls a fact of the operating system that has no event to wait for."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)
