"""What one autoscaler process has in a Kubernetes cluster: sight of its pods, maybe the lead."""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

from services.autoscaler.kube.api import KubeApi
from services.autoscaler.kube.cluster import ClusterUnavailableError
from services.autoscaler.kube.kubernetes_cluster import KubernetesCluster
from services.autoscaler.kube.leadership import Leadership
from services.autoscaler.kube.lease import KubernetesLease
from services.autoscaler.view import Role
from shared.clock import Clock
from shared.errors import SettingsError, StateUnavailableError
from shared.process import new_incarnation

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""in every pod with a token"""


@dataclass(frozen=True)
class Place:
    """Where the pods of the roles are; without deployments there is no cluster."""

    deployments: dict[Role, str] = field(default_factory=dict)
    release: str = ""
    """of the chart"""
    namespace: str = ""
    """empty: that of this pod"""
    kubeconfig: Path | None = None
    """None: this pod's own access"""


class Seat:
    """Of one process."""

    def __init__(self, place: Place, clock: Clock) -> None:
        """MissingError without the client or a cluster, SettingsError without a namespace."""
        api, namespace = KubeApi(place.kubeconfig), place.namespace or _own_namespace()
        self.cluster = KubernetesCluster(
            api, namespace=namespace, release=place.release, deployments=place.deployments
        )
        self._clock = clock
        self._leadership = Leadership(new_incarnation(os.environ.get("HOSTNAME", "autoscaler")))
        self._lease = KubernetesLease(
            api, self._leadership, clock, namespace=namespace, name=f"{place.release}-autoscaler"
        )

    def leads(self) -> bool:
        """Whether this process may write, now."""
        return self._leadership.holds(self._clock.monotonic_s())

    async def look(self) -> None:
        """Take or renew the lease. StateUnavailableError: the API server is away, which is no fault
        of this process."""
        try:
            await asyncio.to_thread(self._lease.look)
        except ClusterUnavailableError as error:
            raise StateUnavailableError(str(error)) from error

    async def release(self) -> None:
        """Let another lead at once. ClusterUnavailableError."""
        await asyncio.to_thread(self._lease.release)


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        raise SettingsError("--namespace: this is no pod, so name the namespace") from None
