"""A headless Chromium, driven over its debugging pipe."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 30.0
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage", "--mute-audio"),
)
_START = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads from descriptor 3 and writes to 4"""


def chromium() -> str | None:
    """Where it is installed; None: nowhere."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab."""

    def __init__(self, sending: int, receiving: int) -> None:
        self.problems: list[str] = []
        """errors and warnings of the console, and exceptions"""
        self.asked: list[str] = []
        """URLs of every request"""
        self._sending = sending
        self._receiving = receiving
        self._rest = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result; what is reported meanwhile is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._sending, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, (method, told["error"])
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def look(self, width: int, height: int, theme: str) -> None:
        """As on a screen of this size, `light` or `dark`."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """Of an expression in the page; a promise is awaited."""
        told = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait_for(self, script: str, limit_s: float = LIMIT_S) -> None:
        """Until an expression is true."""
        until_s = time.monotonic() + limit_s
        while not self.value(script):
            assert time.monotonic() < until_s, f"not in time: {script}"
            time.sleep(0.05)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(b64decode(picture))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._receiving, 1 << 16)
            assert piece, "Chromium has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        parameters = told.get("params", {})
        match told.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.problems.append(str(parameters["entry"]))
            case "Runtime.consoleAPICalled":
                self.problems.append(str(parameters["args"]))


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A tab of a browser of its own; its files are in a folder with a short path, as the socket
    among them needs."""
    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="c-", ignore_cleanup_errors=True) as folder:
        theirs, ours = os.pipe(), os.pipe()
        flags = (*_FLAGS, f"--user-data-dir={folder}/profile")
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _START, str(theirs[0]), str(ours[1]), program, *flags],
            pass_fds=(theirs[0], ours[1]),
            env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs[0])
        os.close(ours[1])
        try:
            yield Page(theirs[1], ours[0])
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(theirs[1])
            os.close(ours[0])
