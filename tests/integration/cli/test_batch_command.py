"""`baton batch run`: files, refusals, retries; kill -9, after which nothing is lost or doubled."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from services.cli.batch import batch as batch_module

COMMAND = (sys.executable, "-m", "services.cli", "batch", "run")


class Server(ThreadingHTTPServer):
    """Answers each prompt with itself; keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: Counter[str] = Counter()
        self.classes: dict[str, str | None] = {}
        """by prompt, as the header says"""
        self.statuses: dict[str, list[tuple[int, dict[str, str]]]] = {}
        """by prompt: what is answered instead, one after the other"""
        self.pause_s = 0.0
        self.most_at_once = self.at_once = 0
        self.lock = threading.Lock()

    def handle_error(self, *_: object) -> None:
        """A client that was killed is none."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "demo"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["prompt"]
        with self.server.lock:
            self.server.asked[prompt] += 1
            self.server.classes[prompt] = self.headers["x-baton-class"]
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
            planted = self.server.statuses.get(prompt)
            status, headers = planted.pop(0) if planted else (200, {})
        time.sleep(self.server.pause_s)
        with self.server.lock:
            self.server.at_once -= 1
        if status == 0:
            self.close_connection = True
            return
        self.reply(status, {"echo": prompt, "path": self.path}, headers)

    def reply(
        self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.send_header("x-request-id", "r-1")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def line(custom_id: str, **change: Any) -> str:
    body = {"model": "demo", "prompt": custom_id}
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps({**request, **change}) + "\n"


def write_input(folder: Path, number: int) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(line(f"id-{at}") for at in range(number)), encoding="utf-8")
    return path


def answers_in(path: Path) -> dict[str, dict[str, Any]]:
    """By custom_id; each is there once."""
    lines = [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()]
    assert len({each["custom_id"] for each in lines}) == len(lines), "doubled"
    return {each["custom_id"]: each for each in lines}


def run(*arguments: object) -> int:
    return main(["batch", "run", *map(str, arguments)])


def test_each_line_gets_its_answer(server: Server, tmp_path: Path) -> None:
    server.pause_s = 0.01
    source, target = write_input(tmp_path, 40), tmp_path / "out.jsonl"
    assert run(source, target, "--url", server.url, "--concurrency", 8) == 0
    answers = answers_in(target)
    assert len(answers) == 40
    response = {"status_code": 200, "request_id": "r-1"}
    body = {"echo": "id-7", "path": "/v1/completions"}
    assert answers["id-7"]["response"] == {**response, "body": body}
    assert 1 < server.most_at_once <= 8
    assert run(source, target, "--url", server.url) == 0
    assert sum(server.asked.values()) == 40, "what is answered is asked again"


def test_a_line_is_bulk_unless_its_body_says_a_priority(server: Server, tmp_path: Path) -> None:
    """A gateway refuses a request that says both."""
    source = tmp_path / "in.jsonl"
    first = line("b", body={"model": "demo", "prompt": "b", "priority": 0})
    source.write_text(line("a") + first, encoding="utf-8")
    assert run(source, tmp_path / "out.jsonl", "--url", server.url) == 0
    assert server.classes == {"a": "bulk", "b": None}


def test_wrong_lines_are_named_and_nothing_is_sent(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    lines = [line("a"), "{\n", "\n", line("b", method="GET"), line("a"), line("\ud800")]
    source.write_text("".join(lines), encoding="utf-8")
    assert run(source, tmp_path / "out.jsonl", "--url", server.url) == 2
    said = capsys.readouterr().err
    for wanted in (
        *("line 2: not JSON", "line 4: method", "line 5: custom_id 'a' is that of line 1"),
        "line 6: custom_id has half of a surrogate pair",
    ):
        assert wanted in said
    assert not server.asked
    assert not (tmp_path / "out.jsonl").exists()


def test_a_busy_server_is_asked_again_when_it_says(server: Server, tmp_path: Path) -> None:
    source, target = write_input(tmp_path, 2), tmp_path / "out.jsonl"
    server.statuses["id-0"] = [(503, {"retry-after": "2"})]
    server.statuses["id-1"] = [(0, {}), (429, {"retry-after": "0"})]
    begun_s = time.monotonic()
    assert run(source, target, "--url", server.url) == 0
    assert time.monotonic() - begun_s >= 2.0
    assert server.asked == {"id-0": 2, "id-1": 3}
    assert {each["response"]["status_code"] for each in answers_in(target).values()} == {200}


def test_an_error_of_a_line_is_its_answer(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever goes on by the exit code hears of it, also from a run that found it there."""
    source, target = write_input(tmp_path, 3), tmp_path / "out.jsonl"
    server.statuses["id-1"] = [(400, {})]
    for _ in range(2):
        assert run(source, target, "--url", server.url) == 1
        assert "1 of them with an error" in capsys.readouterr().err
    statuses = [each["response"]["status_code"] for each in answers_in(target).values()]
    assert sorted(statuses) == [200, 200, 400]


def test_an_answer_to_another_body_is_none(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_input(tmp_path, 2), tmp_path / "out.jsonl"
    assert run(source, target, "--url", server.url) == 0
    answered = target.read_text(encoding="utf-8")
    source.write_text(line("id-0") + line("id-1", body={"prompt": "changed"}), encoding="utf-8")
    assert run(source, target, "--url", server.url) == 2
    assert "'id-1' with another body" in capsys.readouterr().err
    assert target.read_text(encoding="utf-8") == answered
    kept = [each for each in answered.splitlines(keepends=True) if '"id-1"' not in each]
    target.write_text("".join(kept), encoding="utf-8")
    assert run(source, target, "--url", server.url) == 0
    assert "1 lines are answered already, 1 wait" in capsys.readouterr().err
    assert answers_in(target)["id-1"]["response"]["body"]["echo"] == "changed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_batch_that_is_stopped_is_no_success(
    server: Server, tmp_path: Path, number: signal.Signals
) -> None:
    source, target = write_input(tmp_path, 200), tmp_path / "out.jsonl"
    server.pause_s = 0.1
    command = [*COMMAND, str(source), str(target), "--url", server.url, "--concurrency", "4"]
    # Where a shell runs the tests in the background they ignore SIGINT, and so would the child.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen(command, stderr=subprocess.PIPE)  # noqa: S603
    signal.signal(signal.SIGINT, before)
    while not (target.exists() and target.stat().st_size):
        time.sleep(0.02)
    child.send_signal(number)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert said.decode().splitlines()[-1] == "stopped; run the same command to go on"


def test_a_batch_is_stopped_while_it_waits_for_its_input(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = subprocess.Popen([*COMMAND, str(pipe), str(tmp_path / "out")], stderr=subprocess.PIPE)  # noqa: S603
    with pipe.open("wb"):  # opens once the child reads
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=30)
    assert (child.returncode, said) == (130, b"stopped; run the same command to go on\n")


@pytest.mark.parametrize("how", ["a file", "the rest of a file", "a pipe"])
def test_the_input_may_be_the_standard_input(server: Server, tmp_path: Path, how: str) -> None:
    target = tmp_path / "out.jsonl"
    command = [*COMMAND, "-", str(target), "--url", server.url]
    text = (line("a") + line("b")).encode()
    if how == "a pipe":
        child = subprocess.run(command, input=text, check=False)  # noqa: S603
    else:
        source, skipped = tmp_path / "in.jsonl", b"a heading\n" if how != "a file" else b""
        source.write_bytes(skipped + text)
        with source.open("rb", buffering=0) as file:
            file.seek(len(skipped))
            child = subprocess.run(command, stdin=file, check=False)  # noqa: S603
    assert child.returncode == 0
    answers = answers_in(target)
    assert {name: each["response"]["body"]["echo"] for name, each in answers.items()} == {
        "a": "a",
        "b": "b",
    }


def test_an_input_without_a_request_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(os.devnull, tmp_path / "out.jsonl") == 2
    assert f"{os.devnull}: it has no requests" in capsys.readouterr().err


def test_a_wrong_key_ends_the_batch(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_input(tmp_path, 9), tmp_path / "out.jsonl"
    server.statuses = {f"id-{at}": [(401, {})] for at in range(9)}
    assert run(source, target, "--url", server.url, "--concurrency", 1) == 1
    assert "401" in capsys.readouterr().err
    assert answers_in(target) == {}
    assert server.asked == {"id-0": 1}


def test_patience_ends_and_says_how_to_go_on(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(batch_module, "PATIENCE_S", 0.0)
    source, target = write_input(tmp_path, 1), tmp_path / "out.jsonl"
    server.statuses["id-0"] = [(503, {})]
    assert run(source, target, "--url", server.url) == 4
    assert "run the same command to go on" in capsys.readouterr().err


def test_a_fault_of_ours_is_no_end_of_the_batch(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(batch_module, "answer_line", broken)
    source = write_input(tmp_path, 3)
    assert run(source, tmp_path / "out.jsonl", "--url", server.url) == 1


def test_no_gateway_is_told_at_once(tmp_path: Path) -> None:
    source = write_input(tmp_path, 1)
    assert run(source, tmp_path / "out.jsonl", "--url", "http://127.0.0.1:9") == 4


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_the_input_is_no_output(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    link: Callable[[Path, Path], None] | None,
) -> None:
    """Without a newline at its end it would look like an answer that was torn."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a").strip(), encoding="utf-8")
    if link is None:
        target = source
    else:
        link(target, source)
    assert run(source, target, "--url", server.url) == 2
    assert "IN and OUT are the same file" in capsys.readouterr().err
    assert source.read_text(encoding="utf-8") == line("a").strip()
    assert not server.asked


def test_what_keeps_no_answers_is_no_output(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, pipe = write_input(tmp_path, 1), tmp_path / "pipe"
    os.mkfifo(pipe)
    for target, said in (
        (pipe, "no regular file"),
        (Path(os.devnull), "no regular file"),
        (tmp_path, "Is a directory"),
    ):
        assert run(source, target, "--url", server.url) == 2
        assert f"{target}: {said}" in capsys.readouterr().err
    assert not server.asked


def test_kills_lose_and_double_nothing(server: Server, tmp_path: Path) -> None:
    """At moments drawn from the time that a whole run takes; each third kill also tears a line."""
    source, target = write_input(tmp_path, 600), tmp_path / "out.jsonl"
    server.pause_s = 0.04
    draw, num_kills = random.Random(17), 0  # noqa: S311
    while True:
        command = [*COMMAND, str(source), str(target), "--url", server.url, "--concurrency", "4"]
        child = subprocess.Popen(command, stderr=subprocess.PIPE)  # noqa: S603
        try:
            _, said = child.communicate(timeout=draw.uniform(0.2, 0.8) if num_kills < 12 else 60)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
            child.communicate()
            num_kills += 1
            if num_kills % 3 == 0 and target.exists() and target.stat().st_size > 9:
                os.truncate(target, target.stat().st_size - draw.randint(1, 9))
            continue
        assert child.returncode == 0, said.decode()
        break
    assert answers_in(target).keys() == {f"id-{at}" for at in range(600)}
    assert num_kills >= 5
