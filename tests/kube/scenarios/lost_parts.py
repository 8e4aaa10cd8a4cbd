"""Redis or a whole node goes away under load.

`make kube-test` runs this file, in a cluster whose pods are processes.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

from tests.chart.release import NAME
from tests.kube.chart_cluster import CORE, WORKING, ChartCluster, bed_values
from tests.kube.load import SHORT, Asked, Load, judge
from tests.kube.process_cluster import ProcessCluster
from tests.support.measured import Measured

AWAY_S = 60.0
FIRST_ANSWER_S = 1.0
NODE_LIMIT_S = 30.0
TWO = {"replicas": 2}


@dataclass
class Seen:
    """Roles that had fewer ready pods than they should have, at any time."""

    unready: set[str] = field(default_factory=set)


@contextmanager
def watching(cluster: ChartCluster) -> Iterator[Seen]:
    seen, stopping = Seen(), Event()

    def look() -> None:
        while not stopping.wait(0.2):
            seen.unready |= {role for role in WORKING if not cluster.is_ready(role)}

    thread = Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stopping.set()
        thread.join()


def redis_answers(cluster: ChartCluster) -> bool:
    """Whoever asks without a password is told so."""
    spec = cluster.api.get(f"{CORE}/services/{NAME}-baton-redis")["spec"]
    try:
        with socket.create_connection((spec["clusterIP"], 6379), 1) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(64).startswith(b"-NOAUTH")
    except OSError:
        return False


def first_answer_s(asked: Sequence[Asked], after_s: float) -> float:
    """Seconds until a request that came later had its first token."""
    times = [each.began_s + each.stream.first_s for each in asked if each.stream.first_s]
    return min(at_s for at_s in times if at_s > after_s) - after_s


def test_redis_replaced(cluster: ChartCluster, texts: list[str], measured: Measured) -> None:
    """Nobody becomes unready for it; a request that comes meanwhile may be told to come again."""
    with watching(cluster) as seen, Load(cluster.url, SHORT) as load:
        time.sleep(2)
        cluster.delete_pods("redis")
        cluster.wait_rolled_out("redis")
        time.sleep(2)
    judge(measured, load.asked, texts, may_refuse=True)
    assert seen.unready == set()


def test_redis_away(cluster: ChartCluster, texts: list[str], measured: Measured) -> None:
    before = cluster.restarts()
    with watching(cluster) as seen, Load(cluster.url, SHORT) as load:
        time.sleep(2)
        cluster.scale("redis", 0)
        cluster.wait(lambda: not redis_answers(cluster), 15)
        gone_s = time.monotonic()
        time.sleep(AWAY_S)
        cluster.scale("redis", 1)
        cluster.wait(lambda: redis_answers(cluster), 30)
        back_s = time.monotonic()
        cluster.wait(lambda: any(each.began_s > back_s for each in load.asked), 30)
    judge(measured, load.asked, texts, may_refuse=True)
    meanwhile = [each for each in load.asked if gone_s + 1 < each.began_s and each.ended_s < back_s]
    assert len(meanwhile) > AWAY_S
    assert [each for each in meanwhile if not each.was_refused] == []
    first_s = first_answer_s(load.asked, back_s)
    measured.at_most("first token after Redis answers", first_s, FIRST_ANSWER_S, "s")
    assert cluster.restarts() == before
    assert seen.unready == set()


def test_a_node_lost_with_one_of_everything(
    cluster: ProcessCluster, texts: list[str], measured: Measured
) -> None:
    """Redis is on it. The gateway of the other node breaks no stream, and admits again as soon as
    there is a Redis."""
    cluster.settle(bed_values(prefill=TWO, decode=TWO))
    (lost,) = cluster.nodes_of("redis")
    assert {role: len(cluster.nodes_of(role)) for role in WORKING} == dict.fromkeys(WORKING, 2)
    (kept,) = (url for node, url in cluster.gateway_urls().items() if node != lost)
    with Load(kept, SHORT) as of_others, Load(cluster.url, SHORT) as of_all:
        time.sleep(3)
        cluster.kubelet.lose(lost)
        lost_s = time.monotonic()
        cluster.wait(lambda: is_answered_again(of_all.asked, lost_s), 60)
        again_s = time.monotonic() - lost_s
    cluster.kubelet.regain(lost)
    cluster.wait_rolled_out(timeout_s=150)
    judge(measured, of_others.asked, texts, may_refuse=True)
    measured.at_most("all answered again after the loss", again_s, NODE_LIMIT_S, "s")


def is_answered_again(asked: Sequence[Asked], lost_s: float) -> bool:
    """The newest requests of all clients were answered, and came after the loss."""
    newest = asked[-len(SHORT) :]
    return all(each.began_s > lost_s and each.stream.complete for each in newest)
