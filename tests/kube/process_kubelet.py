"""The kubelets of a cluster: nodes that say they live, and their pods as processes."""

import threading
from collections.abc import Mapping

import httpx

from tests.kube.api_server import Object, timestamp
from tests.kube.process_pod import Machine, ProcessPod
from tests.kube.watch import Watch

HEARTBEAT_S = 2.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CAPACITY = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "500Gi", "pods": "110"}


class ProcessKubelet:
    """Of all nodes. `lose` and `regain` are for tests."""

    def __init__(self, machine: Machine, nodes: Mapping[str, Mapping[str, str]]) -> None:
        """`nodes`: what each has besides CAPACITY."""
        self._machine = machine
        self._alive = set(nodes)
        self._numbers = {name: at for at, name in enumerate(sorted(nodes), start=1)}
        self._pods: dict[str, ProcessPod] = {}
        """by uid"""
        self._num_addresses = 1
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._client = machine.server.client()
        self._watch = Watch(self._client, "/api/v1/pods", self._look)
        for name, devices in nodes.items():
            self._join(name, {**CAPACITY, **devices})
        threading.Thread(target=self._beat, daemon=True).start()
        self._watch.start()

    def close(self) -> None:
        """Kills what still runs."""
        self._stopping.set()
        self._watch.stop()
        with self._lock:
            self._cut(list(self._pods.values()))
        self._client.close()

    def lose(self, node: str) -> None:
        """Its pods die at once; it is not heard of any more."""
        with self._lock:
            self._alive.discard(node)
            items = self._watch.items
            there = [uid for uid, item in items.items() if item["spec"].get("nodeName") == node]
            self._cut([self._pods[uid] for uid in there if uid in self._pods])

    def regain(self, node: str) -> None:
        """It was started again: what ran there is gone."""
        with self._lock:
            self._alive.add(node)
        for item in self._watch.items.values():
            if item["spec"].get("nodeName") == node:
                self._remove(item)
        self._look()

    def crash(self, pod: str) -> None:
        """The processes of a pod, by name, are killed."""
        with self._lock:
            for each in self._pods.values():
                if each.name == pod:
                    each.crash()

    def processes(self, pod: str) -> dict[str, int]:
        """Process 1 of each container of a pod, by the container's name."""
        (found,) = (each for each in self._pods.values() if each.name == pod)
        return found.processes()

    def logs(self) -> dict[str, str]:
        """By name of the pod, of all that ran."""
        return {pod.name: pod.logs() for pod in list(self._pods.values())}

    def _cut(self, pods: list[ProcessPod]) -> None:
        """All at once."""
        for pod in pods:
            pod.cut()
        for pod in pods:
            pod.join()

    def _look(self) -> None:
        """Starts what was placed on a node that lives, and stops what was deleted."""
        with self._lock:
            if self._stopping.is_set():
                return
            items = self._watch.items
            for uid, item in items.items():
                if item["spec"].get("nodeName") in self._alive:
                    self._keep(uid, item)
            for uid in self._pods.keys() - items.keys():
                self._pods[uid].stop(0)

    def _keep(self, uid: str, item: Object) -> None:
        leaves = "deletionTimestamp" in item["metadata"]
        if uid in self._pods:
            if leaves:
                self._pods[uid].stop(item["metadata"]["deletionGracePeriodSeconds"])
            return
        if item.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return
        if leaves:
            self._remove(item)
            return
        self._num_addresses += 1
        number = self._numbers[item["spec"]["nodeName"]]
        address = f"10.244.{number}.{self._num_addresses}"
        self._pods[uid] = ProcessPod(self._machine, item, address)
        self._pods[uid].start()

    def _remove(self, item: Object) -> None:
        metadata = item["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            self._machine.cluster.delete(f"{path}?gracePeriodSeconds=0")
        except httpx.HTTPStatusError:
            return  # gone already

    def _join(self, name: str, capacity: dict[str, str]) -> None:
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {},
        }
        made = self._machine.cluster.create("/api/v1/nodes", node)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        times = {"lastHeartbeatTime": timestamp(), "lastTransitionTime": timestamp()}
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{**ready, **times}],
        }
        self._machine.cluster.write_status(f"/api/v1/nodes/{name}", {"status": status})
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"]}
        lease = {
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"holderIdentity": name, "renewTime": timestamp(micro=True)},
        }
        self._machine.cluster.create(LEASES, lease)

    def _beat(self) -> None:
        while not self._stopping.wait(HEARTBEAT_S):
            for name in sorted(self._alive):
                renewed = {"spec": {"renewTime": timestamp(micro=True)}}
                try:
                    self._machine.cluster.patch(f"{LEASES}/{name}", renewed)
                    self._stay_ready(name)
                except httpx.HTTPError:
                    continue  # the next beat tells

    def _stay_ready(self, name: str) -> None:
        """A node that was away is ready again once its kubelet says so."""
        path = f"/api/v1/nodes/{name}"
        status = self._machine.cluster.get(path)["status"]
        (ready,) = (each for each in status["conditions"] if each["type"] == "Ready")
        if ready["status"] != "True":
            now = {"status": "True", "lastHeartbeatTime": timestamp()}
            ready = {**ready, **now, "lastTransitionTime": timestamp()}
            self._machine.cluster.write_status(path, {"status": {"conditions": [ready]}})
