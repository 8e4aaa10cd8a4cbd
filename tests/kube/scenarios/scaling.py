"""Pods of one role come and go under load: no stream breaks and no connection is refused.

`make kube-test` runs this file, in a cluster whose pods are processes.
"""

import time

import pytest

from tests.kube.chart_cluster import ChartCluster
from tests.kube.load import SHORT, Load, broken, judge
from tests.kube.process_cluster import ProcessCluster
from tests.support.measured import Measured

SETTLED_S = 2.0


@pytest.mark.parametrize(("role", "most"), [("decode", 3), ("prefill", 2), ("gateway", 3)])
def test_scaled_out_and_in(
    cluster: ChartCluster, texts: list[str], measured: Measured, role: str, most: int
) -> None:
    least = cluster.deployment(role)["spec"]["replicas"]
    with Load(cluster.url, SHORT) as load:
        for replicas in (most, least):
            cluster.scale(role, replicas)
            cluster.wait_rolled_out(role)
            time.sleep(SETTLED_S)
    judge(measured, load.asked, texts)


def test_streams_whose_gateways_are_killed_are_seen(
    cluster: ProcessCluster, texts: list[str]
) -> None:
    """The detector can fail."""
    with Load(cluster.url, SHORT) as load:
        time.sleep(SETTLED_S)
        for pod in cluster.pods("gateway"):
            cluster.kubelet.crash(pod["metadata"]["name"])
        cluster.wait(lambda: not cluster.is_rolled_out("gateway"), 10)
        cluster.wait_rolled_out("gateway")
    assert len(broken(load.asked, texts)) >= len(SHORT)
