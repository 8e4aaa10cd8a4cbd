"""A real Kubernetes API server on this machine: etcd and kube-apiserver. Whoever needs pods starts
controllers and a kubelet too (control_plane.py, process_kubelet.py).

`build_apiserver.sh` puts the binary where this looks. Both processes listen on the loopback
interface, keep what they store in one folder, and end with the `with` block.
"""

import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx

HOST = "127.0.0.1"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
Object = dict[str, Any]
CURE = "run `make kube-test`, which builds it, or tests/kube/build_apiserver.sh"


@dataclass(frozen=True)
class ApiServer:
    """One running API server, and its administrator's way in."""

    port: int
    token: str
    certificate: Path
    account_key: Path
    """signs the tokens of ServiceAccounts"""

    @property
    def kubeconfig(self) -> str:
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {
                        "server": f"https://{HOST}:{self.port}",
                        "certificate-authority-data": authority,
                    },
                }
            ],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        return json.dumps(config)

    def client(self, token: str = "") -> httpx.Client:
        """As the administrator, or as whom a token is for."""
        return httpx.Client(
            base_url=f"https://{HOST}:{self.port}",
            headers={"authorization": f"Bearer {token or self.token}"},
            verify=ssl.create_default_context(cafile=str(self.certificate)),
            timeout=20,
        )


class Cluster:
    """What the tests ask the API server. httpx.HTTPStatusError on any refusal."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path: str) -> dict[str, Any]:
        return self._answer(self.client.get(path))

    def text(self, path: str) -> str:
        """Empty where there is none, such as the log of a container that has not started."""
        response = self.client.get(path)
        return response.text if response.is_success else ""

    def create(self, path: str, item: dict[str, Any]) -> dict[str, Any]:
        return self._answer(self.client.post(path, json=item))

    def delete(self, path: str) -> None:
        self._answer(self.client.delete(path))

    def token(self, namespace: str, account: str) -> str:
        """A ServiceAccount's, as a kubelet asks for it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        text: str = self.create(path, {"spec": {"expirationSeconds": 600}})["status"]["token"]
        return text

    def patch(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/merge-patch+json"}
        return self._answer(self.client.patch(path, json=patch, headers=headers))

    def write_status(self, path: str, patch: dict[str, Any]) -> None:
        self.patch(f"{path}/status", patch)

    def scale(self, path: str, replicas: int) -> None:
        """As an autoscaler does it, through the scale subresource."""
        self.patch(f"{path}/scale", {"spec": {"replicas": replicas}})

    def names(self, namespace: str) -> set[str]:
        """`kind/name` of everything in a namespace, of every kind the server knows."""
        found: set[str] = set()
        for path, resource in self._namespaced():
            items = self.get(f"{path}/namespaces/{namespace}/{resource['name']}")["items"]
            found |= {f"{resource['kind']}/{item['metadata']['name']}" for item in items}
        return found

    def _namespaced(self) -> Iterator[tuple[str, dict[str, Any]]]:
        groups = self.get("/apis")["groups"]
        paths = [f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups]
        for path in ["/api/v1", *paths]:
            for resource in self.get(path)["resources"]:
                listed = "list" in resource["verbs"] and resource["kind"] != "Event"
                if resource["namespaced"] and listed and "/" not in resource["name"]:
                    yield path, resource

    def _answer(self, response: httpx.Response) -> dict[str, Any]:
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer


def timestamp(*, micro: bool = False) -> str:
    """Now, as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def binary(name: str) -> str:
    """One that build_apiserver.sh made."""
    cache = Path(os.environ.get("KUBE_TEST_CACHE", Path.home() / ".cache" / "baton"))
    assert os.access(cache / name, os.X_OK), f"no {cache / name}: {CURE}"
    return str(cache / name)


@contextmanager
def running_api_server(folder: Path) -> Iterator[ApiServer]:
    """Ready in about 3 s; at most START_LIMIT_S."""
    etcd = shutil.which("etcd")
    openssl = shutil.which("openssl")
    assert etcd is not None, f"no etcd: {CURE}"
    assert openssl is not None, "no openssl: apt-get install openssl"
    key = folder / "service-account.key"
    subprocess.run([openssl, "genrsa", "-out", key, "2048"], check=True, capture_output=True)  # noqa: S603
    token = token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    client, peer, port = _free_port(), _free_port(), _free_port()
    etcd_flags = {
        "data-dir": folder / "etcd",
        "listen-client-urls": f"http://{HOST}:{client}",
        "advertise-client-urls": f"http://{HOST}:{client}",
        "listen-peer-urls": f"http://{HOST}:{peer}",
        "initial-advertise-peer-urls": f"http://{HOST}:{peer}",
        "initial-cluster": f"default=http://{HOST}:{peer}",
    }
    flags = {
        "etcd-servers": f"http://{HOST}:{client}",
        "bind-address": HOST,
        "advertise-address": HOST,
        "secure-port": port,
        "insecure-port": 0,
        "cert-dir": folder / "certificates",
        "service-cluster-ip-range": "10.0.0.0/24",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "token-auth-file": folder / "tokens.csv",
        "authorization-mode": "RBAC",
        "disable-admission-plugins": "ServiceAccount",
    }
    with ExitStack() as stack:
        stack.enter_context(running(folder / "etcd.log", etcd, etcd_flags))
        log = folder / "apiserver.log"
        process = stack.enter_context(running(log, binary("kube-apiserver"), flags))
        server = ApiServer(port, token, folder / "certificates" / "apiserver.crt", key)
        _wait_until_ready(server, process, log)
        yield server


@contextmanager
def running(log: Path, program: str, flags: dict[str, Any]) -> Iterator["subprocess.Popen[bytes]"]:
    """With flags; ended with the block."""
    command = [program, *(f"--{name}={value}" for name, value in flags.items())]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(server: ApiServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline_s, log.read_text()[-2000:]
        try:
            with server.client() as client:
                client.get("/readyz").raise_for_status()
                client.get("/api/v1/namespaces/default").raise_for_status()
        except (httpx.HTTPError, OSError):
            time.sleep(0.1)
        else:
            return


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
