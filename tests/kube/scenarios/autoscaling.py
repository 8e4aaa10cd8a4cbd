"""The chart's own autoscaler takes a worker away under load: it drains, and then its pod goes.

`make kube-test` runs this file, in a cluster whose pods are processes; `make scale-cycles` has it
go up and down twenty times.
"""

import os
import time
from typing import Any

from tests.kube.chart_cluster import bed_values
from tests.kube.load import SHORT, Load, judge
from tests.kube.process_cluster import ProcessCluster
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


def unready(cluster: ProcessCluster) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in cluster.pods("decode")
        for condition in pod["status"]["conditions"]
        if (condition["type"], condition["status"]) == ("Ready", "False")
    }


def grow(cluster: ProcessCluster) -> set[str]:
    """To two decode workers, ready ones: the names of their pods."""
    cluster.upgrade(scaled(2))
    cluster.wait(lambda: cluster.deployment("decode")["spec"]["replicas"] == 2, LIMIT_S)
    cluster.wait_rolled_out("decode")
    return {pod["metadata"]["name"] for pod in cluster.pods("decode")}


def shrink(cluster: ProcessCluster) -> tuple[set[str], float]:
    """One worker is allowed to do: what was unready as the other was ordered to go, and after how
    many seconds it was."""
    cluster.upgrade(scaled(1))
    start_s, drained = time.monotonic(), set[str]()
    while cluster.deployment("decode")["spec"]["replicas"] == 2:
        drained = unready(cluster) or drained
        assert time.monotonic() < start_s + LIMIT_S, cluster.shown()
        time.sleep(0.1)
    ordered_s = time.monotonic() - start_s
    cluster.wait_rolled_out("decode")
    return drained, ordered_s


def test_the_pod_that_goes_is_the_one_that_drained(
    cluster: ProcessCluster, texts: list[str], measured: Measured
) -> None:
    cluster.settle(scaled(2))
    cluster.wait_rolled_out("autoscaler")
    with Load(cluster.url, SHORT) as load:
        for cycle in range(NUM_CYCLES):
            names = grow(cluster)
            drained, ordered_s = shrink(cluster)
            (left,) = (pod["metadata"]["name"] for pod in cluster.pods("decode"))
            assert drained == names - {left}, f"cycle {cycle}"
            measured.note(f"ordered {ordered_s:.0f} s after one worker was allowed to do")
    judge(measured, load.asked, texts)
