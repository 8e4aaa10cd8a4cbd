"""Runs the Jobs of an API server that has no kubelet: each container as a process of this machine,
with its ServiceAccount's token, then what the Job's controller would write about it."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kube.api_server import HOST, ApiServer, Cluster
from tests.kube.volumes import ACCOUNT

POLL_S = 0.1


@contextmanager
def running_jobs(server: ApiServer, namespace: str, folder: Path) -> Iterator[None]:
    """Runs every Job of a namespace once, until the `with` block ends."""
    stopping = threading.Event()

    def run() -> None:
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        with server.client() as client:
            cluster = Cluster(client)
            while not stopping.wait(POLL_S):
                for job in cluster.get(path)["items"]:
                    if not job.get("status", {}).get("conditions"):
                        failed = run_job(server, cluster, job, folder)
                        cluster.write_status(f"{path}/{job['metadata']['name']}", ended(failed))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def run_job(server: ApiServer, cluster: Cluster, job: dict[str, Any], folder: Path) -> bool:
    """Whether its container failed."""
    spec = job["spec"]["template"]["spec"]
    namespace = job["metadata"]["namespace"]
    token = cluster.token(namespace, spec["serviceAccountName"])
    for name, text in (("token", token), ("namespace", namespace)):
        (folder / name).write_text(text)
    (folder / "ca.crt").write_bytes(server.certificate.read_bytes())
    (container,) = spec["containers"]
    assert container["command"] == ["python3", "-c"]
    script, *arguments = container["args"]
    given = {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(server.port)}
    command = [sys.executable, "-c", script.replace(ACCOUNT, str(folder)), *arguments]
    result = subprocess.run(command, env={**os.environ, **given}, check=False)  # noqa: S603
    return result.returncode != 0


def ended(failed: bool) -> dict[str, Any]:
    condition = {"type": "Failed" if failed else "Complete", "status": "True"}
    counts = {"failed": 1} if failed else {"succeeded": 1}
    return {"status": {"conditions": [condition], **counts}}
