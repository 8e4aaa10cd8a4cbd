"""The lease in Kubernetes by which one of several autoscalers leads.

`Leadership` decides; here its decisions are read and written. Each write carries the version that
was read, so of two writers one fails.
"""

import threading
from datetime import UTC, datetime
from typing import Any

from services.autoscaler.kube.api import AbsentError, ConflictError, KubeApi
from services.autoscaler.kube.leadership import ABSENT, DURATION_S, Leadership, Lease
from services.autoscaler.kube.rights import LEASE, NEW_LEASE, Use
from shared.clock import Clock


class KubernetesLease:
    """Of one process. Calls block for seconds and raise ClusterUnavailableError; any thread may
    call, one call waits for another."""

    def __init__(
        self, api: KubeApi, leadership: Leadership, clock: Clock, *, namespace: str, name: str
    ) -> None:
        self._api = api
        self._leadership = leadership
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._lock = threading.Lock()

    def look(self) -> None:
        """Reads the lease and takes or renews it if it is time. To be called each `RENEW_S`."""
        with self._lock:
            lease = self._read()
            if self._leadership.see(lease, self._clock.monotonic_s()) == "wait":
                return
            sent_s = self._clock.monotonic_s()
            try:
                self._write(lease, self._leadership.identity)
            except ConflictError:
                return  # somebody was faster: the next look says who
            self._leadership.renewed(sent_s)

    def release(self) -> None:
        """Lets another lead at once; this process never leads again, even if this raises."""
        self._leadership.end()
        with self._lock:
            lease = self._read()
            if lease.holder != self._leadership.identity:
                return
            try:
                self._write(lease, "")
            except ConflictError:
                return  # another has it

    def _read(self) -> Lease:
        try:
            return self._api.ask(
                Use(LEASE, "get", self._name),
                self._api.coordination.read_namespaced_lease,
                _lease,
                name=self._name,
                namespace=self._namespace,
            )
        except AbsentError:
            return ABSENT

    def _write(self, lease: Lease, holder: str) -> None:
        """Makes the holder that of the lease that was read. Raises ConflictError."""
        metadata = {"name": self._name, "namespace": self._namespace}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": _spec(lease, holder),
        }
        if lease is ABSENT:
            self._api.ask(
                Use(NEW_LEASE, "create", self._name),
                self._api.coordination.create_namespaced_lease,
                _lease,
                namespace=self._namespace,
                body=body,
            )
        else:
            metadata["resourceVersion"] = lease.version
            self._api.ask(
                Use(LEASE, "update", self._name),
                self._api.coordination.replace_namespaced_lease,
                _lease,
                name=self._name,
                namespace=self._namespace,
                body=body,
            )


def _spec(lease: Lease, holder: str) -> dict[str, object]:
    """The next state of a lease. Its wall times are for people: nobody compares them."""
    now = datetime.now(UTC)
    is_taken = holder not in ("", lease.holder)
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": round(DURATION_S),
        "acquireTime": _micro_time(now if is_taken else lease.acquired or now),
        "renewTime": _micro_time(now),
        "leaseTransitions": lease.num_transitions + is_taken,
    }


def _micro_time(moment: datetime) -> str:
    """The API server wants six digits after the second, and the client leaves them out if all are
    zeros."""
    return moment.replace(microsecond=moment.microsecond or 1).isoformat()


def _lease(body: Any, _at: datetime) -> Lease:
    spec = body.get("spec") or {}
    acquired = spec.get("acquireTime")
    return Lease(
        holder=str(spec.get("holderIdentity") or ""),
        version=str(body["metadata"]["resourceVersion"]),
        duration_s=float(spec.get("leaseDurationSeconds") or DURATION_S),
        num_transitions=int(spec.get("leaseTransitions") or 0),
        acquired=datetime.fromisoformat(acquired) if acquired else None,
    )
