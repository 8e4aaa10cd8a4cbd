"""Requests that engines die of, among others: those are all answered, the poison is told apart and
refused, and a pair is left all the time.

Guards: one client that takes a cell down, and innocents that are failed for what they were near.
`make poison` runs the whole campaign.
"""

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Cluster, Stream, drawn_bodies, running
from tests.support.measured import Measured

NUM_POISONS = int(os.environ.get("POISONS", "1"))
NUM_INNOCENTS = int(os.environ.get("INNOCENTS", "24"))
WINDOW_S = float(os.environ.get("POISON_WINDOW_S", "8"))
"""in which the poisons come"""
DEADLY = 3
MAX_DEATHS = 4
NO_PAIR_S = 3.0
LIMIT_S = 300.0


class PairWatch(threading.Thread):
    """For how long the cell has no ready worker of some role, at most."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.worst_s = 0.0
        self._cluster = cluster
        self._ended = threading.Event()

    def run(self) -> None:
        since_s = None
        while not self._ended.wait(0.05):
            ready = [w for w in self._cluster.workers() if w["state"] == "ready"]
            if {worker["role"] for worker in ready} == {"prefill", "decode"}:
                since_s = None
                continue
            since_s = since_s or time.monotonic()
            self.worst_s = max(self.worst_s, time.monotonic() - since_s)

    def end(self) -> None:
        self._ended.set()
        self.join()


def poison_bodies() -> list[dict[str, Any]]:
    bodies = drawn_bodies(NUM_POISONS, 16, 77, lambda rng: rng.randrange(40, 120))
    for body in bodies:
        body["prompt"][-5] = DEADLY
    return bodies


def innocent_bodies() -> list[dict[str, Any]]:
    bodies = drawn_bodies(NUM_INNOCENTS, 100, 78, lambda rng: rng.randrange(20, 200))
    return [{**body, "logit_bias": {str(DEADLY): -100}} for body in bodies]


def answers_over_time(cluster: Cluster, bodies: list[dict[str, Any]], seed: int) -> list[Stream]:
    """Each sent at its own moment of the window."""
    rng = random.Random(seed)  # noqa: S311
    answers: list[Stream | None] = [None] * len(bodies)

    def ask(at: int, after_s: float) -> None:
        time.sleep(after_s)
        answers[at] = cluster.answer(bodies[at], LIMIT_S)

    threads = [
        threading.Thread(target=ask, args=(at, WINDOW_S * rng.random()))
        for at in range(len(bodies))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answer for answer in answers if answer is not None]


def test_a_poison_is_told_apart_and_nobody_else_is_failed(
    tmp_path: Path, measured: Measured
) -> None:
    flags = ("--prefill", "2", "--decode", "2", "--kv-blocks", "2048")
    poisons, innocents = poison_bodies(), innocent_bodies()
    with running(tmp_path, *flags, BATON_PLANTED_FAULTS=f"crash={DEADLY}") as cluster:
        watch = PairWatch(cluster)
        watch.start()
        ended: dict[str, list[Stream]] = {}
        asking = threading.Thread(
            target=lambda: ended.update(poisons=answers_over_time(cluster, poisons, 1))
        )
        asking.start()
        seen = answers_over_time(cluster, innocents, 2)
        asking.join()
        assert [stream.error for stream in seen if not stream.complete] == []
        assert len(seen) == NUM_INNOCENTS
        codes = {(stream.error or {}).get("code") for stream in ended["poisons"]}
        assert codes == {"request_crashed_worker"}
        assert len(ended["poisons"]) == NUM_POISONS

        again = cluster.answers(poisons, LIMIT_S)
        assert {stream.status for stream in again} == {400}
        assert {(stream.error or {}).get("code") for stream in again} == codes
        cluster.wait(lambda: [w["state"] for w in cluster.workers()] == ["ready"] * 4, 90)
        watch.end()
        undisturbed = cluster.answers(innocents, LIMIT_S)
        assert [stream.answer for stream in seen] == [stream.answer for stream in undisturbed]
        cluster.wait_blocks_back()
        num_deaths = cluster.log.read_text().count(
            "the engine process ended with status -11; start"
        )
    measured.at_most("deaths", num_deaths, MAX_DEATHS * NUM_POISONS)
    measured.at_most("without a ready pair", watch.worst_s, NO_PAIR_S, "s")
