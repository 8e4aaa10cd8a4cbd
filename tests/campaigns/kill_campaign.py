"""`make kill-campaign`: kill -9 of a random worker every 10 s under 16 streams.

`--busy` keeps every core busy with other processes meanwhile.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import psutil

from tests.campaigns.busy_cores import busy_cores
from tests.campaigns.faults import NUM_WORKERS, Fault, Faulted, Size, run_faults
from tests.campaigns.figures import Figure, at_most, judge, quantile, say
from tests.e2e.cluster import Cluster

EVERY_S = 10.0
MAX_STALL_P50_S = 1.0
MAX_STALL_P99_S = 5.0


async def kill_one(cluster: Cluster, numbers: random.Random) -> bool:
    """Of a random worker the io process or the engine. False when there was nobody to kill."""
    workers = await asyncio.to_thread(cluster.workers)
    ready = [worker for worker in workers if worker["state"] == "ready"]
    if not ready:
        return False
    worker = numbers.choice(ready)
    try:
        io = psutil.Process(worker["pid"])
        victim = numbers.choice([io, *io.children()])
        os.kill(victim.pid, signal.SIGKILL)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False
    part = "io" if victim.pid == io.pid else "engine"
    say(f"killed {worker['id']} ({part})")
    return True


async def kill_one_of_all(cluster: Cluster, numbers: random.Random) -> bool:
    """False while one killed before is still starting: where both workers of a role are gone, a
    stall lasts as long as a start, and how long that is, is the machine's."""
    workers = await asyncio.to_thread(cluster.workers)
    whole = [worker["state"] for worker in workers] == ["ready"] * NUM_WORKERS
    return whole and await kill_one(cluster, numbers)


async def run(
    folder: Path, size: Size, every_s: float = EVERY_S, fault: Fault = kill_one
) -> Faulted:
    return await run_faults(folder, size, every_s, fault)


def figures(faulted: Faulted) -> list[Figure]:
    return [
        *faulted.figures(),
        at_most(
            "stall of a hit stream, p50", quantile(faulted.stalls_s, 0.5), MAX_STALL_P50_S, "s"
        ),
        at_most(
            "stall of a hit stream, p99", quantile(faulted.stalls_s, 0.99), MAX_STALL_P99_S, "s"
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="other processes on every core")
    arguments = parser.parse_args()
    size = Size(arguments.seconds, seed=arguments.seed)
    cores = busy_cores(os.cpu_count() or 1) if arguments.busy else nullcontext()
    with tempfile.TemporaryDirectory() as folder, cores:
        return judge(figures(asyncio.run(run(Path(folder), size))))


if __name__ == "__main__":
    sys.exit(main())
