"""A `baton` whose `serve` is a stand-in without a model; every other command is the real one.

The stand-in workers write a file when they are "loaded"; the stand-in gateway's status lists
them. `FAKE_FOLDER` is where; `FAKE_FAILURES` = {worker id: [exit code, message]} makes one fail
while starting; `FAKE_SLOW` names one that never becomes ready; `FAKE_LINES` is how many lines
each worker logs before it is "loaded", and again for each SIGUSR1.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from services.cli.__main__ import Parser
from services.cli.__main__ import main as baton
from services.cli.cluster.run_file import start_ticks
from services.cli.flags import add_settings, given_settings
from shared.challenge import purpose_key
from shared.process import die_with_parent
from shared.settings.groups import Settings
from shared.settings.load import load_settings

ANSWER = "once upon a time there was a lighthouse"


class StatusPage(http.server.BaseHTTPRequestHandler):
    """The pages `up` and `demo` read, and one chat answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        workers = _workers()
        stages = [
            {"name": worker["role"], "pid": worker["pid"], "start_ns": 0, "end_ns": 5_000_000}
            for worker in workers
        ]
        answers: dict[str, object] = {
            "/v1/baton/status": {"version": "fake", "workers": workers},
            "/v1/models": {"data": [{"id": "fake"}]},
            "/v1/baton/requests/r1": {"stages": stages},
        }
        self._answer(json.dumps(answers.get(self.path, {})))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        words = [{"choices": [{"delta": {"content": f"{word} "}}]} for word in ANSWER.split()]
        lines = [f"data: {json.dumps(word)}\n\n" for word in words]
        self._answer("".join(lines) + "data: [DONE]\n\n")

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("x-request-id", "r1")
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


class ClientPage(StatusPage):
    """Whoever asks has no API key."""

    def do_GET(self) -> None:
        self.send_error(401)


def main() -> int:
    if sys.argv[1:2] != ["serve"]:
        return baton()
    parser = Parser(prog="fake serve")
    parser.add_argument("role")
    parser.add_argument("--parent-pid", type=int)
    add_settings(parser)
    arguments = parser.parse_args(sys.argv[2:])
    die_with_parent(arguments.parent_pid)
    signal.signal(signal.SIGTERM, _end)
    settings = load_settings(given_settings(arguments))
    if arguments.role == "gateway":
        _serve_status(settings)
    return _work(settings, arguments.role)


def _work(settings: Settings, role: str) -> int:
    worker_id, secret = settings.worker.id, settings.network.cell_secret
    failures = json.loads(os.environ.get("FAKE_FAILURES", "{}"))
    if worker_id in failures:
        code, message = failures[worker_id]
        sys.stderr.write(f"a line of log\n{message}\n")
        return int(code)
    signal.signal(signal.SIGUSR1, lambda number, frame: _log())
    _log()
    engine = [sys.executable, "-c", "import signal; signal.pause()"]
    grandchild = subprocess.Popen(engine, preexec_fn=lambda: die_with_parent(os.getppid()))  # noqa: S603, PLW1509
    if os.environ.get("FAKE_SLOW") != worker_id:
        facts = {
            "id": worker_id,
            "role": role,
            "pid": os.getpid(),
            "engine": grandchild.pid,
            "state": "ready",
            "has_secret": bool(settings.kv.secret),
            "cell": purpose_key(secret, "test").hex() if secret else "",
        }
        draft = _folder() / f"{os.getpid()}.draft"
        draft.write_text(json.dumps(facts), encoding="utf-8")
        draft.rename(draft.with_suffix(".json"))
    while True:
        signal.pause()


def _log() -> None:
    for number in range(int(os.environ.get("FAKE_LINES", "0"))):
        sys.stderr.write(f"line {number} {'.' * 80}\n")


def _serve_status(settings: Settings) -> None:
    network = settings.network
    clients = ClientPage if network.api_keys_file else StatusPage
    with (
        http.server.ThreadingHTTPServer((network.host, network.admin_port), StatusPage) as admin,
        http.server.ThreadingHTTPServer((network.host, network.port), clients) as server,
    ):
        threading.Thread(target=admin.serve_forever, daemon=True).start()
        server.serve_forever()


def _workers() -> list[dict[str, Any]]:
    """The workers that are alive, as the real status has them."""
    found = [json.loads(path.read_text()) for path in _folder().glob("*.json")]
    living = [facts for facts in found if start_ticks(facts["pid"]) is not None]
    return sorted(living, key=lambda facts: str(facts["id"]))


def _folder() -> Path:
    return Path(os.environ["FAKE_FOLDER"])


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
