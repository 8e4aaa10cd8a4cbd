"""The chart's own autoscaler takes a worker away under load: it drains, and then its pod goes.

`make kube-test` runs this file, in a cluster whose pods are processes; `make scale-cycles` has it
go up and down twenty times.
"""

import os
import time
from typing import Any, Self

from tests.kube.api_server import Object
from tests.kube.chart_cluster import CORE, bed_values
from tests.kube.load import SHORT, Load, judge
from tests.kube.process_cluster import ProcessCluster
from tests.kube.watch import Watch
from tests.support.measured import Measured

LIMIT_S = 120.0
NUM_CYCLES = int(os.environ.get("KUBE_TEST_CYCLES", "1"))
"""up and down again, under the same load"""
AUTOSCALER = {
    "everyS": 2,
    "slo": {"ttftMs": 60_000, "gapMs": 10_000},  # one worker does, on any machine
}


def scaled(num_decode: int) -> dict[str, Any]:
    """With at least that number of decode workers."""
    pools = {
        role: {"autoscaling": {"mode": "builtin", "minReplicas": least, "maxReplicas": 3}}
        for role, least in (("prefill", 1), ("decode", num_decode))
    }
    image = {"autoscaler": {"repository": "baton-autoscaler-hasty"}}
    return bed_values(autoscaler=AUTOSCALER, image=image, **pools)


class Drained:
    """Decode pods that were ready and then were not, although nobody had deleted them. A watch: it
    sees each change, and a look at intervals may miss one."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.names: set[str] = set()
        self._ready: set[str] = set()
        self._watch = Watch(cluster.api.client, f"{CORE}/pods", self._look)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()

    def _look(self) -> None:
        for pod in self._watch.items.values():
            meta = pod["metadata"]
            if meta["labels"].get("app.kubernetes.io/component") != "decode":
                continue
            if is_ready(pod):
                self._ready.add(meta["name"])
            elif meta["name"] in self._ready and "deletionTimestamp" not in meta:
                self.names.add(meta["name"])


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def grow(cluster: ProcessCluster) -> set[str]:
    """To two decode workers, ready ones: the names of their pods."""
    cluster.upgrade(scaled(2))
    cluster.wait(lambda: cluster.deployment("decode")["spec"]["replicas"] == 2, LIMIT_S)
    cluster.wait_rolled_out("decode")
    return {pod["metadata"]["name"] for pod in cluster.pods("decode")}


def shrink(cluster: ProcessCluster) -> float:
    """One worker is allowed to do: after how many seconds the other was ordered to go."""
    cluster.upgrade(scaled(1))
    start_s = time.monotonic()
    cluster.wait(lambda: cluster.deployment("decode")["spec"]["replicas"] == 1, LIMIT_S)
    ordered_s = time.monotonic() - start_s
    cluster.wait_rolled_out("decode")
    return ordered_s


def test_the_pod_that_goes_is_the_one_that_drained(
    cluster: ProcessCluster, texts: list[str], measured: Measured
) -> None:
    cluster.settle(scaled(2))
    cluster.wait_rolled_out("autoscaler")
    with Load(cluster.url, SHORT) as load, Drained(cluster) as drained:
        for cycle in range(NUM_CYCLES):
            names = grow(cluster)
            drained.names.clear()
            ordered_s = shrink(cluster)
            left = {pod["metadata"]["name"] for pod in cluster.pods("decode")}
            assert len(left) == 1
            assert drained.names == names - left, f"cycle {cycle}"
            measured.note(f"ordered {ordered_s:.0f} s after one worker was allowed to do")
    judge(measured, load.asked, texts)
