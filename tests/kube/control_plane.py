"""The real controllers and the real scheduler of an API server."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.kube.api_server import ApiServer, binary, running

CONTROLLERS = (
    "deployment,replicaset,endpoint,disruption,garbagecollector,namespace,nodelifecycle,podgc,job"
)
NODE_GRACE_S = 12
"""a node that is silent for so long is lost"""


@contextmanager
def running_control_plane(server: ApiServer, folder: Path) -> Iterator[None]:
    config = folder / "kubeconfig"
    config.write_text(server.kubeconfig)
    shared = {
        "kubeconfig": config,
        "leader-elect": "false",
        "port": 0,
        "secure-port": 0,
        "kube-api-qps": 200,
        "kube-api-burst": 400,
    }
    controllers = {
        **shared,
        "controllers": CONTROLLERS,
        "node-monitor-grace-period": f"{NODE_GRACE_S}s",
        "node-monitor-period": "1s",
        "service-account-private-key-file": server.account_key,
    }
    with ExitStack() as stack:
        log = folder / "controllers.log"
        stack.enter_context(running(log, binary("kube-controller-manager"), controllers))
        stack.enter_context(running(folder / "scheduler.log", binary("kube-scheduler"), shared))
        yield
