"""A pod's volumes as folders."""

import base64
import os
from pathlib import Path

from tests.kube.api_server import ApiServer, Cluster, Object

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
DEFAULT_MODE = 0o644


class Volumes:
    """Of one pod. httpx.HTTPStatusError while a Secret or ConfigMap is not there."""

    def __init__(self, server: ApiServer, cluster: Cluster, pod: Object, folder: Path) -> None:
        self._server = server
        self._cluster = cluster
        self._pod = pod
        self._folder = folder
        self._group = int(pod["spec"].get("securityContext", {}).get("fsGroup", 0))

    def make(self) -> dict[str, Path]:
        """By name of the volume; the account's token under its own path."""
        made = {each["name"]: self._make(each) for each in self._pod["spec"].get("volumes", [])}
        if self._pod["spec"].get("automountServiceAccountToken", False):
            made[ACCOUNT] = self._account()
        return made

    def _make(self, volume: Object) -> Path:
        folder = self._new(volume["name"])
        core = f"/api/v1/namespaces/{self._pod['metadata']['namespace']}"
        if "secret" in volume:
            source = volume["secret"]
            found = self._cluster.get(f"{core}/secrets/{source['secretName']}")["data"]
            texts = {key: base64.b64decode(text) for key, text in found.items()}
            self._fill(folder, source, texts)
        elif "configMap" in volume:
            source = volume["configMap"]
            found = self._cluster.get(f"{core}/configmaps/{source['name']}")["data"]
            self._fill(folder, source, {key: text.encode() for key, text in found.items()})
        else:
            assert "emptyDir" in volume, f"no such volume here: {volume}"
            folder.chmod(0o2777 if self._group else 0o777)
        return folder

    def _account(self) -> Path:
        """The token that a kubelet asks for, and what goes with it."""
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        token = self._cluster.token(metadata["namespace"], spec["serviceAccountName"])
        texts = {
            "token": token.encode(),
            "namespace": metadata["namespace"].encode(),
            "ca.crt": self._server.certificate.read_bytes(),
        }
        folder = self._new("account")
        self._fill(folder, {"defaultMode": 0o440}, texts)
        return folder

    def _new(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, -1, self._group)
        return folder

    def _fill(self, folder: Path, source: Object, texts: dict[str, bytes]) -> None:
        named: list[Object] = [{"key": key, "path": key} for key in texts]
        for item in source.get("items") or named:
            file = folder / item["path"]
            file.write_bytes(texts[item["key"]])
            os.chown(file, -1, self._group)
            file.chmod(item.get("mode") or source.get("defaultMode", DEFAULT_MODE))
