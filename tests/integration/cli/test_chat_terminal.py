"""`baton chat` in a real terminal: what Ctrl-C ends, and what the gateway sees of it."""

import contextlib
import http.server
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

LIMIT_S = 20.0
CTRL_C = b"\x03"


class EndlessAnswers(http.server.BaseHTTPRequestHandler):
    """Answers a chat word by word until the client is gone."""

    bodies: list[dict[str, Any]]
    left: threading.Semaphore

    def do_GET(self) -> None:
        self._head()
        self.wfile.write(b'{"data": [{"id": "m"}], "workers": []}')

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._head()
        word = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"data: " + json.dumps(word).encode() + b"\n\n")
                time.sleep(0.01)  # the pace of a model
        self.left.release()

    def _head(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[tuple[str, type[EndlessAnswers]]]:
    class Page(EndlessAnswers):
        bodies: list[dict[str, Any]] = []  # noqa: RUF012 one list for each test
        left = threading.Semaphore(0)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", Page
        server.shutdown()
        serving.join()


def _take_terminal() -> None:
    """A session gets the first terminal that it opens, and so its Ctrl-C, which whoever runs the
    tests in the background may have had ignored."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        ours, theirs = pty.openpty()
        self._fd = ours
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "services.cli", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509
        )
        os.close(theirs)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def wait_for(self, text: str) -> None:
        """Until it has shown this, after what was waited for before."""
        shown, deadline_s = "", time.monotonic() + LIMIT_S
        while text not in shown:
            ready, _, _ = select.select([self._fd], [], [], deadline_s - time.monotonic())
            assert ready, f"no {text!r} in {shown!r}"
            shown += os.read(self._fd, 1).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


def test_ctrl_c_ends_the_answer_and_at_the_prompt_the_conversation(
    gateway: tuple[str, type[EndlessAnswers]],
) -> None:
    url, page = gateway
    terminal = Terminal("chat", "--url", url)
    try:
        for question in (b"one\n", b"two\n"):
            terminal.wait_for("\n> " if question == b"one\n" else "> ")
            terminal.type(question)
            terminal.wait_for("word word")
            terminal.type(CTRL_C)
            assert page.left.acquire(timeout=LIMIT_S), "the request was not cancelled"
        terminal.wait_for("> ")
        terminal.type(CTRL_C)
        assert terminal.process.wait(LIMIT_S) == 0
    finally:
        terminal.close()
    first, second = [body["messages"] for body in page.bodies]
    assert [turn["content"] for turn in first] == ["one"]
    assert [turn["role"] for turn in second] == ["user", "assistant", "user"]
    assert second[1]["content"].startswith("word word")
