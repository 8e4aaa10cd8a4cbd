"""A Kubernetes API server in a thread: scales of Deployments, pods and leases, over real HTTP.

It keeps what a client may trip over: a version for every write, 409 for an old one, RBAC, a scale
of 0 that is left out of the JSON, and a clock of its own. It can be away, slow, broken, or hang up
after it has done what it was asked.
"""

import http.server
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

NAMESPACE, TOKEN = "serving", "a-token"
_VERBS = {"GET": "get", "PUT": "update", "POST": "create"}
_PATH = re.compile(
    r"/apis?/(?:(?P<group>[\w.]+)/)?v1/namespaces/(?P<namespace>[\w-]+)/(?P<kind>\w+)"
    r"(?:/(?P<name>[\w-]+))?(?:/(?P<part>\w+))?(?:\?(?P<query>.*))?$"
)
_MICRO_TIME = re.compile(r"[\d-]{10}T[\d:]{8}\.\d{6}(Z|[+-]\d\d:\d\d)")


class Rule(NamedTuple):
    """What RBAC allows. An empty name: any."""

    api_group: str
    resource: str
    name: str
    verb: str


class Asked(NamedTuple):
    """A request that came, allowed or not."""

    verb: str
    resource: str
    name: str


@dataclass
class FakeKubeApi:
    """The state of the server; tests set it while it runs."""

    rules: set[Rule] | None = None
    """None: everything is allowed"""
    replicas: dict[str, int] = field(default_factory=dict)
    """of each Deployment"""
    versions: dict[str, int] = field(default_factory=dict)
    """of each Deployment; a new status makes a new one too"""
    pods: list[dict[str, Any]] = field(default_factory=list)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    ahead_s: float = 0.0
    """of the test's clock"""
    tells_date: bool = True
    slow_s: float = 0.0
    """it answers that late"""
    is_broken: bool = False
    """it answers 500"""
    hangs_up: bool = False
    """it does what it is asked, and closes the connection without an answer"""
    says: bytes | None = None
    """instead of its answer"""
    before: Callable[[Asked], None] = lambda _: None
    """what happens between a client's request and its effect"""
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    _version: int = 100
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    def add_deployment(self, name: str, replicas: int) -> None:
        self.replicas[name] = replicas
        self.touch(name)

    def touch(self, name: str) -> None:
        """A Deployment has a new status."""
        self.versions[name] = self._next_version()

    def answer(self, asked: Asked, group: str, query: str, body: Any) -> tuple[int, Any]:
        """The HTTP status and the JSON of one request, done."""
        self.before(asked)
        with self._lock:
            if self.is_broken:
                return _status(500, "InternalError", "etcdserver: leader changed")
            if not self._allows(asked, group):
                return _forbidden(asked, group)
            match asked.resource:
                case "deployments/scale":
                    return self._scale(asked, body)
                case "pods":
                    return 200, {"kind": "PodList", "items": self._selected(query)}
                case "leases":
                    return self._lease(asked, body)
            return _status(404, "NotFound", "the server could not find the requested resource")

    def _allows(self, asked: Asked, group: str) -> bool:
        rules = self.rules
        names = ("",) if asked.verb in ("create", "list") else ("", asked.name)
        return rules is None or any(
            Rule(group, asked.resource, name, asked.verb) in rules for name in names
        )

    def _scale(self, asked: Asked, body: Any) -> tuple[int, Any]:
        name = asked.name
        if name not in self.replicas:
            return _status(404, "NotFound", f'deployments.apps "{name}" not found')
        if asked.verb == "update":
            version = body["metadata"].get("resourceVersion", "")
            if version not in ("", str(self.versions[name])):
                return _conflict("deployments.apps", name)
            self.replicas[name] = body["spec"]["replicas"]
            self.touch(name)
        replicas = self.replicas[name]
        return 200, {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": name, "resourceVersion": str(self.versions[name])},
            "spec": {"replicas": replicas} if replicas else {},
            "status": {"replicas": replicas},
        }

    def _selected(self, query: str) -> list[dict[str, Any]]:
        chosen = parse_qs(query).get("labelSelector", [""])[0]
        wanted = set(filter(None, chosen.split(",")))
        return [
            pod
            for pod in self.pods
            if wanted <= {f"{key}={value}" for key, value in pod["metadata"]["labels"].items()}
        ]

    def _lease(self, asked: Asked, body: Any) -> tuple[int, Any]:
        kept = self.leases.get(asked.name)
        if asked.verb == "create":
            if kept:
                return _status(409, "AlreadyExists", f'leases "{asked.name}" already exists')
        elif not kept:
            return _status(404, "NotFound", f'leases "{asked.name}" not found')
        elif asked.verb == "update":
            version = body["metadata"].get("resourceVersion")
            if not version:
                return _status(422, "Invalid", "metadata.resourceVersion: must be specified")
            if version != kept["metadata"]["resourceVersion"]:
                return _conflict("leases.coordination.k8s.io", asked.name)
        if asked.verb != "get":
            times = body["spec"]["acquireTime"], body["spec"]["renewTime"]
            if not all(_MICRO_TIME.fullmatch(text) for text in times):
                return _status(400, "BadRequest", f"cannot parse {times} as micro times")
            body["metadata"]["resourceVersion"] = str(self._next_version())
            self.leases[asked.name] = body
        return 200, self.leases[asked.name]

    def _next_version(self) -> int:
        self._version += 1
        return self._version


def _status(code: int, reason: str, message: str) -> tuple[int, Any]:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _conflict(resource: str, name: str) -> tuple[int, Any]:
    text = f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified'
    return _status(409, "Conflict", text)


def _forbidden(asked: Asked, group: str) -> tuple[int, Any]:
    text = (
        f'User "system:serviceaccount:{NAMESPACE}:autoscaler" cannot {asked.verb} resource '
        f'"{asked.resource}" in API group "{group}" in the namespace "{NAMESPACE}"'
    )
    return _status(403, "Forbidden", f'{asked.resource} "{asked.name}" is forbidden: {text}')


class _Connection(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Server"

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        api, body = self.server.api, self._body()
        match = _PATH.match(self.path)
        if match is None:
            return self._send(*_status(404, "NotFound", self.path))
        name, part = match["name"] or "", match["part"]
        verb = _VERBS[self.command] if name or self.command != "GET" else "list"
        if verb == "create":
            name = body["metadata"]["name"]
        resource = f"{match['kind']}/{part}" if part else match["kind"]
        asked = Asked(verb, resource, name)
        api.asked.append(asked)
        api.closing.wait(api.slow_s)
        scheme, _, token = (self.headers["authorization"] or "").partition(" ")
        if (scheme.lower(), token) != ("bearer", TOKEN):
            return self._send(*_status(401, "Unauthorized", "Unauthorized"))
        answer = api.answer(asked, match["group"] or "", match["query"] or "", body)
        if api.hangs_up:
            self.close_connection = True
            return None
        return self._send(*answer)

    do_PUT = do_POST = do_GET

    def _body(self) -> Any:
        size = int(self.headers.get("content-length") or 0)
        return json.loads(self.rfile.read(size)) if size else None

    def _send(self, status: int, value: Any) -> None:
        api = self.server.api
        body = json.dumps(value).encode() if api.says is None else api.says
        self.send_response_only(status)
        if api.tells_date:
            self.send_header("Date", format_datetime(api.now(), usegmt=True))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, api: FakeKubeApi) -> None:
        self.api = api
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", api.port), _Connection)
        api.port = self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up."""


@contextmanager
def serving(api: FakeKubeApi, certificate: Path | None = None) -> Iterator[FakeKubeApi]:
    """The server listens; afterwards it refuses connections. It may serve again at its port.
    With a certificate, and its key in the same file, it speaks TLS."""
    api.closing.clear()
    with _Server(api) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # A handshake is for the connection's thread: the server goes on accepting.
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield api
        finally:
            api.closing.set()
            server.shutdown()
            thread.join()
            for connection in tuple(server.connections):
                with suppress(OSError):  # it has gone already
                    connection.shutdown(socket.SHUT_RDWR)


def write_kubeconfig(folder: Path, port: int, token: str = TOKEN) -> Path:
    """A file that names a server on this machine."""
    path = folder / "kubeconfig"
    cluster = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "here", "context": {"cluster": "here", "user": "me"}}
    user = {"name": "me", "user": {"token": token}}
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [cluster],
        "contexts": [context],
        "users": [user],
    }
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
