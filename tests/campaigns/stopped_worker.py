"""`make stopped-worker`: one of two decode workers stands still for 8 s, with all its processes."""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.campaigns.faults import Faulted, Size, run_faults
from tests.campaigns.figures import Figure, at_most, judge, say
from tests.e2e.cluster import Cluster, process_family

STOPPED_S = 8.0
EVERY_S = 5.0
"""from the load's start to the stop, and from there to the load's end"""
MAX_STALL_S = 5.0


async def stop_one(cluster: Cluster, numbers: random.Random) -> bool:
    worker = numbers.choice(await asyncio.to_thread(cluster.workers, "decode"))
    family = process_family(worker["pid"])
    say(f"{worker['id']} is stopped, {len(family)} processes")
    for process in family:
        process.suspend()
    try:
        await asyncio.sleep(STOPPED_S)
    finally:
        for process in family:
            if process.is_running():
                process.resume()
    say(f"{worker['id']} goes on")
    return True


async def run(folder: Path, size: Size) -> Faulted:
    return await run_faults(folder, size, EVERY_S, stop_one)


def figures(faulted: Faulted) -> list[Figure]:
    longest_s = max(faulted.stalls_s, default=0.0)
    return [
        *faulted.figures(),
        at_most("longest time until a hit stream goes on", longest_s, MAX_STALL_S, "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    size = Size(arguments.seconds, seed=arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        return judge(figures(asyncio.run(run(Path(folder), size))))


if __name__ == "__main__":
    sys.exit(main())
