"""Pods come when they are ordered and placed, and go as a ReplicaSet's do.

Guarded against: work for a pod that starts, a pod without GPUs that starts, GPUs that are given
back while somebody computes on them, and a smaller order that takes the wrong pod.
"""

from services.simulator.pods import Gpus, Pods, Worker
from services.simulator.prefill_worker import PrefillWorker
from services.simulator.request import Request
from services.simulator.timeline import Timeline
from services.simulator.worker_kind import PREFILL
from tests.unit.simulator.test_simulated_workers import request


class Bench:
    """Prefill pods that start in 90 s."""

    def __init__(self, most: int | None = None) -> None:
        self.timeline = Timeline()
        self.gpus = Gpus(most)
        self.pods = Pods("prefill", self.timeline, self.gpus, self._make, self._changed)
        self.pods.start_s = 90.0

    def at(self, now_s: float) -> None:
        self.timeline.run(now_s)

    @property
    def ready(self) -> list[str]:
        return [worker.routed.incarnation for worker in self.pods.workers]

    def worker(self, index: int) -> PrefillWorker:
        found = self.pods.workers[index]
        assert isinstance(found, PrefillWorker)
        return found

    def _make(self, name: str) -> Worker:
        return PrefillWorker(name, PREFILL, self.timeline, self._computed, lambda: None)

    def _computed(self, request: Request) -> None:
        self.pods.reap()

    def _changed(self) -> None:
        self.pods.place()


def test_a_pod_takes_work_once_it_has_started() -> None:
    bench = Bench()
    bench.pods.order(2)
    bench.at(89)
    assert (bench.ready, bench.pods.num_placed) == ([], 2)
    bench.at(90)
    assert bench.ready == ["prefill-0", "prefill-1"]


def test_a_pod_without_gpus_is_pending_until_some_are_free() -> None:
    bench = Bench(most=2)
    bench.pods.order(3)
    bench.at(200)
    assert len(bench.ready) == 2
    assert [pod.unschedulable_s for pod in bench.pods.seen_pods()] == [None, None, 200]
    bench.gpus.most = 3
    bench.pods.place()
    bench.at(290)
    assert len(bench.ready) == 3


def test_a_smaller_order_takes_pending_then_starting_then_the_youngest() -> None:
    bench = Bench(most=3)
    bench.pods.order(2)
    bench.at(100)
    bench.pods.order(4)
    for replicas, left in ((3, [0, 1, 2]), (2, [0, 1]), (1, [0])):
        bench.pods.order(replicas)
        names = [pod.name for pod in bench.pods.seen_pods()]
        assert names == [f"prefill-{at}" for at in left]
    assert bench.gpus.used == 1


def test_one_that_drains_goes_before_one_that_serves() -> None:
    bench = Bench()
    bench.pods.order(3)
    bench.at(100)
    bench.pods.drain({"prefill-0"})
    assert bench.ready == ["prefill-1", "prefill-2"]
    assert [worker.is_draining for worker in bench.pods.seen_workers()] == [True, False, False]
    bench.pods.order(2)
    assert bench.ready == ["prefill-1", "prefill-2"]


def test_a_drain_that_is_not_asked_for_again_ends() -> None:
    bench = Bench()
    bench.pods.order(1)
    bench.at(100)
    bench.pods.drain({"prefill-0"})
    bench.pods.drain(())
    assert bench.ready == ["prefill-0"]


def test_a_pod_keeps_its_gpus_until_its_work_is_done() -> None:
    bench = Bench()
    bench.pods.order(1)
    bench.at(100)
    bench.worker(0).take(request(100, 100_000, PREFILL))
    bench.pods.order(0)
    bench.at(105)
    assert (bench.ready, bench.gpus.used, bench.pods.num_ending) == ([], 1, 1)
    bench.at(107)
    assert (bench.gpus.used, bench.pods.num_ending) == (0, 0)


def test_a_pod_that_nobody_wants_any_more_does_not_start() -> None:
    bench = Bench()
    bench.pods.order(1)
    bench.at(50)
    bench.pods.order(0)
    bench.at(200)
    assert (bench.ready, bench.gpus.used) == ([], 0)
