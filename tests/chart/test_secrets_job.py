"""The hook that makes the release's Secret, against a server that speaks the API's TLS and HTTP."""

import base64
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import certifi
import pytest

from tests.chart.release import NAMESPACE, render
from tests.rules.sources import ROOT

CERTIFICATE = ROOT / "tests" / "localhost.pem"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
REFUSED = {"message": 'secrets is forbidden: User "x" cannot create resource "secrets"'}


@dataclass
class ApiServer:
    """Answers each request with the next of `statuses`, then with the last one again."""

    statuses: list[int]
    requests: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """(path, authorization, body)"""
    port: int = 0

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["content-length"])))
        self.requests.append((request.path, request.headers["authorization"], body))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        text = json.dumps(REFUSED if status == 403 else {}).encode()
        request.send_response(status)
        request.send_header("content-length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    api = ApiServer([201])

    class Request(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            api.answer(self)

        def log_message(self, *_: object) -> None:
            """pytest shows no log of it."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with HTTPServer(("127.0.0.1", 0), Request) as listener:
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
        api.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        yield api
        listener.shutdown()
        thread.join()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name, text in (("namespace", NAMESPACE), ("token", "jwt\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "ca.crt").write_bytes(CERTIFICATE.read_bytes())
    return tmp_path


def run_hook(
    port: int, account: Path, patience_s: float = 10.0
) -> "subprocess.CompletedProcess[str]":
    """The Job's own command, with a mounted account and variables as a kubelet gives them."""
    (container,) = dict(render({}).pods())["secrets"]["spec"]["containers"]
    script, *arguments = container["args"]
    for old, new in (
        (ACCOUNT, str(account)),
        ("PATIENCE_S = 60.0", f"PATIENCE_S = {patience_s}"),
        ("POLL_S = 1.0", "POLL_S = 0.01"),
    ):
        assert script.count(old) == 1
        script = script.replace(old, new)
    assert container["command"] == ["python3", "-c"]
    given = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    return subprocess.run(  # noqa: S603 the chart's own command
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **given, "https_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_makes_one_secret_with_texts_of_its_own(server: ApiServer, account: Path) -> None:
    first, second = run_hook(server.port, account), run_hook(server.port, account)
    assert (first.returncode, first.stderr) == (0, "")
    (path, authorization, body), (_, _, other) = server.requests
    assert path == f"/api/v1/namespaces/{NAMESPACE}/secrets"
    assert authorization == "Bearer jwt"
    assert body["metadata"]["name"] == "rel-baton-cell"
    assert body["metadata"]["labels"]["app.kubernetes.io/instance"] == "rel"
    texts = {key: base64.b64decode(text).decode() for key, text in body["data"].items()}
    assert set(texts) == {"cell-secret", "redis-password", "redis-url"}
    assert texts["redis-url"] == f"redis://:{texts['redis-password']}@rel-baton-redis:6379/0"
    assert min(len(text) for text in texts.values()) >= 43
    assert not set(body["data"].values()) & set(other["data"].values())
    assert not [text for text in texts.values() if text in first.stdout + second.stdout]


def test_one_that_is_there_is_left_alone(server: ApiServer, account: Path) -> None:
    server.statuses = [409]
    result = run_hook(server.port, account)
    assert (result.returncode, result.stderr) == (0, "")
    assert "left alone" in result.stdout
    assert len(server.requests) == 1


def test_a_server_that_is_not_up_yet_is_asked_again(server: ApiServer, account: Path) -> None:
    server.statuses = [503, 429, 201]
    assert run_hook(server.port, account).returncode == 0
    assert len(server.requests) == 3


def test_a_refusal_ends_it_and_says_why(server: ApiServer, account: Path) -> None:
    server.statuses = [403]
    result = run_hook(server.port, account)
    assert result.returncode == 1
    assert "(403)" in result.stderr
    assert "cannot create resource" in result.stderr


def test_a_server_that_the_cluster_does_not_vouch_for_gets_no_token(
    server: ApiServer, account: Path
) -> None:
    (account / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    result = run_hook(server.port, account, patience_s=0.0)
    assert result.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in result.stderr
    assert server.requests == []
