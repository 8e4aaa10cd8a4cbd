"""Upgrades and rollbacks under load: no stream breaks, however long it is, and old pods serve on
where new ones do not start.

`make kube-test` runs this file, in a cluster whose pods are processes.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import helm_python
import pytest

from tests.chart.release import NAME
from tests.kube.chart_cluster import WORKING, ChartCluster, bed_values
from tests.kube.load import LONG, SHORT, Load, answers_in_peace, judge
from tests.kube.process_cluster import ProcessCluster
from tests.kube.process_pod import NEXT_TAG
from tests.support.measured import Measured
from tests.support.next_release import NEXT

LONG_S = 30.0
AGAIN_S = 70.0
DEADLINE_S = 20
TWO = {"replicas": 2}
ON_GPUS = {"gpu": {"count": 1}, "settings": {"device": "cpu"}}
"""what asks for the cluster's GPUs, and computes without one"""


def revision(tag: str, **changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values that replace every pod of Baton's own."""
    return bed_values(image={"control": {"tag": tag}, "engine": {"tag": tag}}, **changes)


def speaks(cluster: ProcessCluster, version: int) -> bool:
    return cluster.versions_spoken() == {version}


def test_three_rollouts_under_long_streams(cluster: ChartCluster, measured: Measured) -> None:
    """Two upgrades and a rollback, of two pods of each role. What an old gateway began it ends."""
    cluster.settle(bed_values(prefill=TWO, decode=TWO))
    texts = answers_in_peace(cluster.url, LONG)
    with Load(cluster.url, LONG) as load:
        for tag in ("one", "two"):
            cluster.upgrade(revision(tag, prefill=TWO, decode=TWO))
            cluster.wait(lambda: all(map(cluster.is_replaced, WORKING)), 150)
        cluster.helm.rollback(NAME)
        cluster.wait(lambda: all(map(cluster.is_replaced, WORKING)), 150)
    cluster.wait_rolled_out()
    judge(measured, load.asked, texts)
    longest_s = max(each.ended_s - each.began_s for each in load.asked)
    measured.at_least("longest stream", longest_s, LONG_S, "s")
    assert {role: len(cluster.nodes_of(role)) for role in WORKING} == dict.fromkeys(WORKING, 2)


def test_the_next_release_and_the_way_back(
    cluster: ProcessCluster, texts: list[str], measured: Measured
) -> None:
    """It adds a member to ASSIGN and frames of its own. While both run each pair of pods speaks
    what both know."""
    cluster.settle(revision("one", prefill=TWO, decode=TWO))
    with Load(cluster.url, SHORT) as load:
        for tag, version in ((NEXT_TAG, NEXT.newest), ("one", NEXT.oldest)):
            cluster.upgrade(revision(tag, prefill=TWO, decode=TWO))
            cluster.wait(lambda: all(map(cluster.is_replaced, WORKING)), 150)
            cluster.wait(partial(speaks, cluster, version), 60)
    judge(measured, load.asked, texts)


def test_pods_that_do_not_start_replace_none(
    cluster: ChartCluster, texts: list[str], measured: Measured
) -> None:
    """The model is not where it is said to be: every new pod crashes, again and again."""
    cluster.settle(revision("one", prefill=TWO, decode=TWO))
    absent: dict[str, Any] = {
        role: {
            **TWO,
            "extraVolumes": [{"name": "absent", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "absent", "mountPath": "/models"}],
        }
        for role in WORKING
    }
    before = cluster.restarts()
    wrong = revision("two", settings={"model": "/models/absent"}, **absent)
    with Load(cluster.url, SHORT) as load:
        with pytest.raises(helm_python.HelmError):
            cluster.upgrade(wrong, wait="legacy", timeout=DEADLINE_S)
        after = cluster.restarts()
        cluster.helm.rollback(NAME)
        cluster.wait_rolled_out()
    judge(measured, load.asked, texts)
    assert {name: after.get(name) for name in before} == before
    assert sum(after.values()) > 0, "nothing crashed"


def test_gateways_that_start_without_prefill_workers_serve(
    cluster: ChartCluster, texts: list[str], measured: Measured
) -> None:
    cluster.settle(revision("one", prefill=TWO, decode=TWO))
    cluster.scale("prefill", 0)
    cluster.wait_rolled_out("prefill")
    cluster.delete_pods("gateway")
    start_s = time.monotonic()
    with Load(cluster.url, SHORT) as load:
        cluster.wait_rolled_out("gateway", timeout_s=100)
        cluster.wait(lambda: sum(each.stream.complete for each in load.asked) >= len(SHORT), 30)
    answered = [each for each in load.asked if each.began_s > start_s + 1 and not each.failure]
    first_s = [each.began_s + each.stream.first_s for each in answered if each.stream.complete]
    measured.at_most("first token again", min(first_s) - start_s, AGAIN_S, "s")
    judge(measured, answered, texts, may_refuse=True)
    cluster.scale("prefill", 2)
    cluster.wait_rolled_out("prefill")


def test_an_upgrade_where_every_gpu_is_taken_ends(
    cluster: ChartCluster, texts: list[str], measured: Measured
) -> None:
    """Two GPUs, one worker of each role: the old one goes first. While there is no decode worker
    requests are refused; what was begun is answered."""
    cluster.settle(revision("one", prefill=ON_GPUS, decode=ON_GPUS))
    with Load(cluster.url, SHORT) as load:
        cluster.upgrade(revision("two", prefill=ON_GPUS, decode=ON_GPUS))
        ended_s = cluster.wait_rolled_out(timeout_s=150)
        cluster.wait(lambda: load.asked[-1].stream.complete, 30)
    measured.at_most("the upgrade ended", ended_s, 150, "s")
    refused = sum(each.stream.status == 503 for each in load.asked)
    measured.note(f"{refused} of {len(load.asked)} requests refused")
    judge(measured, load.asked, texts, may_refuse=True)
