"""A cluster of kind: real kubelets, a network plugin, images. `in_kind.sh` makes it."""

import base64
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import helm_python
import httpx
import yaml

from tests.chart.release import NAME
from tests.kube.api_server import Cluster, Object
from tests.kube.chart_cluster import CORE, NAMESPACE, ChartCluster, merged

SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}
"""so that all pods of an upgrade fit a small machine"""


class KindCluster(ChartCluster):
    """The gateways' Service is reached at a port of its nodes."""

    @property
    def url(self) -> str:
        (port,) = self.api.get(f"{CORE}/services/{NAME}-baton-gateway")["spec"]["ports"]
        node = self.api.get("/api/v1/nodes")["items"][0]
        addresses = {each["type"]: each["address"] for each in node["status"]["addresses"]}
        return f"http://{addresses['InternalIP']}:{port['nodePort']}"

    def upgrade(self, values: Mapping[str, Any], **options: Any) -> None:
        super().upgrade(on_kind(values), **options)

    def install(self, values: Mapping[str, Any]) -> None:
        super().install(on_kind(values))


def on_kind(values: Mapping[str, Any]) -> dict[str, Any]:
    """With a port on the nodes, and requests that a small machine has room for."""
    small = {"resources": SMALL}
    gateway = {**small, "service": {"type": "NodePort"}}
    return merged(values, {"gateway": gateway, "prefill": small, "decode": small})


@contextmanager
def running_kind() -> Iterator[KindCluster]:
    """Empty but for a namespace."""
    text = os.environ["KUBE_TEST_CONFIG"]
    helm = helm_python.Config(kubeconfig_content=text, namespace=NAMESPACE)
    with client_of(yaml.safe_load(text)) as client, helm:
        api = Cluster(client)
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield KindCluster(api, helm)


def client_of(config: Object) -> httpx.Client:
    """As the one user of a kubeconfig, with the certificate in it."""
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with TemporaryDirectory() as folder:  # the ssl module reads keys from files only
        certificate, key = Path(folder) / "certificate", Path(folder) / "key"
        certificate.write_bytes(base64.b64decode(user["client-certificate-data"]))
        key.write_bytes(base64.b64decode(user["client-key-data"]))
        context.load_cert_chain(certificate, key)
    return httpx.Client(base_url=cluster["server"], verify=context, timeout=20)
