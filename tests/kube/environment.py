"""A container's environment, and the references in its command."""

import base64
import re

from tests.kube.api_server import HOST, ApiServer, Cluster, Object

REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def environment_of(
    server: ApiServer, cluster: Cluster, pod: Object, container: Object
) -> dict[str, str]:
    """httpx.HTTPStatusError while a Secret or ConfigMap is not there."""
    environ = {
        "HOSTNAME": pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": HOST,
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }
    for item in container.get("env", []):
        if "valueFrom" in item:
            environ[item["name"]] = _looked_up(cluster, pod, item["valueFrom"])
        else:
            environ[item["name"]] = expanded(item.get("value", ""), environ)
    return environ


def expanded(text: str, environ: dict[str, str]) -> str:
    """With $(NAME) replaced where there is one; $$ is a dollar sign."""

    def of(match: re.Match[str]) -> str:
        return "$" if match[1] is None else environ.get(match[1], match[0])

    return REFERENCE.sub(of, text)


def command_of(container: Object, environ: dict[str, str]) -> list[str]:
    parts = [*container.get("command", []), *container.get("args", [])]
    return [expanded(part, environ) for part in parts]


def _looked_up(cluster: Cluster, pod: Object, source: Object) -> str:
    if "fieldRef" in source:
        found: object = pod
        for part in source["fieldRef"]["fieldPath"].split("."):
            assert isinstance(found, dict)
            found = found[part]
        return str(found)
    core = f"/api/v1/namespaces/{pod['metadata']['namespace']}"
    if "secretKeyRef" in source:
        asked = source["secretKeyRef"]
        text: str = cluster.get(f"{core}/secrets/{asked['name']}")["data"][asked["key"]]
        return base64.b64decode(text).decode()
    asked = source["configMapKeyRef"]
    plain: str = cluster.get(f"{core}/configmaps/{asked['name']}")["data"][asked["key"]]
    return plain
