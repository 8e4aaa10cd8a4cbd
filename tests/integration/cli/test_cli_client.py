"""`baton status` and `baton chat` against a server that answers what the test says."""

import http.server
import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from services.cli.bench.serve.endpoint import Endpoint
from services.cli.cluster.run_file import write_record
from services.cli.gateway_client import GatewayClient, found_url, gateway_url
from services.cli.status import render_status
from shared.errors import BatonError, SettingsError
from shared.runtime_folder import runtime_folder

STATUS = {
    "version": "2026.11.0",
    "url": "http://x",
    "model": "demo",
    "max_model_len": 2048,
    "requests": {"live": 3},
    "workers": [
        {
            "id": "decode-0",
            "role": "decode",
            "state": "ready",
            "pid": 12,
            "host": "h",
            "running": 1,
            "waiting": 0,
            "kv": {"total": 9, "free": 4, "cached": 3, "held": 2},
            "heartbeat_age_s": 0.25,
        }
    ],
}


STAGE = {"start_ns": 0, "end_ns": 5_000_000}
RECEIPT = {
    "id": "r1",
    "state": "done",
    "prompt_tokens": 17,
    "completion_tokens": 60,
    "stages": [{"name": name, **STAGE} for name in ("queue", "prefill")],
}


def delta(text: str | None, finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


class Script:
    """What the server answers to a chat request, and the bodies it was sent."""

    def __init__(self) -> None:
        self.url = self.other_url = ""
        self.status = 200
        self.admin_url = ""
        """of another port, which alone shows what operators ask for"""
        self.events: list[str] = []
        self.bodies: list[dict[str, Any]] = []


@contextmanager
def serving(page: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {
                "/v1/baton/status": STATUS,
                "/v1/models": {"data": [{"id": "demo"}]},
                "/v1/baton/requests/r1": RECEIPT,
                "/v1/baton/requests/group": {"id": "group", "choices": [{"id": "r1"}] * 2},
            }
            is_admin = f"http://{self.headers['host']}" == script.admin_url
            if self.path.startswith("/v1/baton") and script.admin_url and not is_admin:
                self._answer(404, json.dumps({"error": {"message": "no such path; GET ..."}}))
            elif self.path in answers:
                self._answer(200, json.dumps(answers[self.path]))
            else:
                self._answer(404, json.dumps({"error": {"message": "no such request; each ..."}}))

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            script.bodies.append(json.loads(self.rfile.read(length)))
            self._answer(script.status, "".join(script.events))

        def _answer(self, status: int, content: str) -> None:
            self.send_response(status)
            self.send_header("x-request-id", "abc")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with serving(Page) as url, serving(Page) as other_url:
        script.url, script.other_url = url, other_url
        yield script


def test_one_question(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.events = [delta("Hel"), delta("lo"), delta(None, "stop"), "data: [DONE]\n\n"]
    assert main(["chat", "--url", script.url, "--max-tokens", "5", "say", "hello"]) == 0
    assert capsys.readouterr().out == "Hello\n"
    assert script.bodies == [
        {
            "model": "demo",
            "messages": [{"role": "user", "content": "say hello"}],
            "stream": True,
            "max_tokens": 5,
        }
    ]


def test_conversation_keeps_its_turns(
    script: Script, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script.events = [delta("yes"), "data: [DONE]\n\n"]
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
    monkeypatch.setenv("BATON_URL", script.url)
    assert main(["chat"]) == 0
    assert capsys.readouterr().out == "yes\nyes\n"
    texts = [[message["content"] for message in body["messages"]] for body in script.bodies]
    assert texts == [["one"], ["one", "yes", "two"]]


@pytest.mark.parametrize(
    ("status", "events", "text"),
    [
        (429, ['{"error": {"message": "too much"}}'], "too much"),
        (502, ["<html>"], "not a Baton gateway"),
        (200, [delta("a"), 'data: {"error": {"message": "worker lost"}}\n\n'], "worker lost"),
        (200, [delta("a")], "the answer ended before it was complete"),
        (200, ["data: {nonsense\n\n"], "the answer broke off"),
    ],
    ids=["refused", "not ours", "error event", "cut short", "malformed"],
)
def test_failed_answer_is_exit_1(
    script: Script,
    status: int,
    events: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.status, script.events = status, events
    assert main(["chat", "--url", script.url, "hello"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"baton: error: {text}")
    assert errors.count("\n") == 1


def test_request_id_comes_from_the_header(script: Script) -> None:
    script.events = [delta("a", "length"), "data: [DONE]\n\n"]
    with GatewayClient(script.url).chat([]) as answer:
        assert answer.request_id == "abc"
        assert list(answer) == ["a"]
        assert answer.finish_reason == "length"


def test_status_as_json_is_the_answer_itself(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--json", "--url", script.url]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_status_as_table(
    script: Script, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["status", "--url", script.url]) == 0
    head, columns, row = capsys.readouterr().out.splitlines()
    assert head == "baton 2026.11.0 at http://x: demo, 2048 tokens, 3 live request(s)"
    assert columns.split()[:4] == ["ID", "ROLE", "STATE", "PID"]
    assert " ".join(row.split()) == "decode-0 decode ready 12 h 1 0 4 3 2 9 0.2 s"


def test_status_says_what_is_wrong() -> None:
    trouble = "no decode worker is linked"
    assert render_status(STATUS | {"trouble": trouble}).splitlines()[1] == f"trouble: {trouble}"
    away = render_status(STATUS | {"redis": "away"}).splitlines()
    assert away[1] == "trouble: Redis: away; new requests are refused"
    nobody = render_status(STATUS | {"workers": [], "trouble": trouble})
    assert nobody.splitlines()[1:] == [f"no workers: {trouble}"]
    assert render_status(STATUS | {"workers": []}).splitlines()[1:] == ["no workers"]


def test_status_says_how_kv_comes() -> None:
    pair = {"prefill": "p", "decode": "d", "transport": "tcp", "why": "no socket", "num": 3}
    pairs = [{**pair, "bytes": 1_234_567_890, "gb_per_s": 2.5}, {**pair, "bytes": 0, "gb_per_s": 0}]
    assert render_status(STATUS | {"hand_overs": pairs}).splitlines()[3:] == [
        "p -> d: 3 hand-over(s), 1,234.6 MB at 2.5 GB/s, tcp: no socket",
        "p -> d: 3 hand-over(s), 0 kB, tcp: no socket",
    ]


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_status_fits_the_terminal_and_leaves_nothing_out(
    script: Script,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["status", "--url", script.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).split())
    assert all(word in words for word in ("decode-0", "ready", "12", "0.2 s"))
    sentence = (
        "decode-0: decode, ready, pid 12 on h; 1 running, 0 waiting; 4 free, 3 cached, "
        "2 held of 9 blocks; last beat 0.2 s ago"
    )
    assert (sentence in words) == (columns < 100)


@pytest.mark.parametrize("command", [["status"], ["chat", "hello"], ["chat"]])
def test_nobody_there_is_exit_4(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        assert main([*command, "--url", url]) == 4
    assert f"no gateway answers at {url}" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_bad_url_is_exit_2(url: str) -> None:
    assert main(["status", "--url", url]) == 2


def test_url_is_flag_then_variable_then_default() -> None:
    assert gateway_url("http://a/", {"BATON_URL": "http://b"}) == "http://a"
    assert gateway_url(None, {"BATON_URL": "http://b/"}) == "http://b"
    assert gateway_url(None, {}) == "http://127.0.0.1:8000"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where cells that run here are found."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("BATON_URL", raising=False)
    return runtime_folder()


def test_status_is_of_the_only_cell_that_runs_here(
    script: Script, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(folder, 1, script.url)
    assert main(["status", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["model"] == "demo"
    assert told.err == f"of the only cell that `baton up` runs here, {script.url}\n"
    assert main(["status", "--url", script.url]) == 0
    assert capsys.readouterr().err == "", "it was named"


def test_where_none_or_several_run_the_url_is_the_default(folder: Path) -> None:
    assert found_url(None, {}) == "http://127.0.0.1:8000"
    write_record(folder, 1, "http://h:1")
    assert found_url(None, {}) == "http://h:1"
    assert found_url(None, {"BATON_URL": "http://b"}) == "http://b"
    assert found_url("http://a", {}) == "http://a"
    write_record(folder, 2, "http://h:2")
    assert found_url(None, {}) == "http://127.0.0.1:8000"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_operators_ask_for_comes_from_the_admin_port_of_a_cell_that_runs_here(
    script: Script, folder: Path, host: str
) -> None:
    script.admin_url = script.other_url
    port = int(script.url.rpartition(":")[2])
    url = f"http://{host}:{port}"
    with pytest.raises(BatonError, match=r"admin port may have it: name that with --url"):
        GatewayClient(url).status()
    assert Endpoint(url).status() == {}
    write_record(folder, port, script.url, admin_url=script.admin_url)
    assert GatewayClient(url).status() == Endpoint(url).status() == STATUS
    assert GatewayClient(url).receipt("r1") == RECEIPT
    assert main(["status", "--url", url]) == 0


def test_trace_draws_a_request_and_each_choice_of_an_answer(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "r1", "--url", script.url]) == 0
    told = capsys.readouterr().out
    assert told.startswith("request r1: done, 17 tokens of the prompt, 60 of the answer\n")
    assert "\nprefill " in told and "0 ms" in told
    assert main(["trace", "group", "--url", script.url]) == 0
    assert capsys.readouterr().out == f"{told}\n{told}"
    assert main(["trace", "r1", "--url", script.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == RECEIPT


@pytest.mark.parametrize(
    ("rid", "code", "text"),
    [
        ("no-such-id", 1, "requests/no-such-id: 404 no such request"),
        *((odd, 2, "ID: give the x-request-id") for odd in ("", "a/b", "a?b", "\udcff", "x" * 999)),
    ],
)
def test_trace_of_no_request(
    script: Script, capsys: pytest.CaptureFixture[str], rid: str, code: int, text: str
) -> None:
    assert main(["trace", rid, "--url", script.url]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("end", ["/v1", "/v1/", "/", ""])
def test_the_url_may_be_the_one_that_openai_clients_are_given(end: str) -> None:
    assert gateway_url(f"http://a:1{end}", {}) == "http://a:1"
    assert gateway_url(None, {"BATON_URL": f"http://a:1/sub{end}"}) == "http://a:1/sub"


def test_errors_have_their_types(script: Script) -> None:
    with pytest.raises(SettingsError):
        GatewayClient("nothing")
    script.events = []
    with pytest.raises(BatonError), GatewayClient(script.url).chat([]) as answer:
        list(answer)
