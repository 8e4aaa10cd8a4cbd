"""`make kill-campaign`: kill -9 of a random worker every 10 s under 16 streams.

`--busy` keeps every core busy with other processes meanwhile. `--up` loads another cell: on two
GPUs, `--up "--device cuda --topology pd" --role prefill` kills prefill under the streams of decode.
Stalls are judged only where each role has a second worker.
"""

import argparse
import asyncio
import os
import random
import shlex
import signal
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.campaigns.busy_cores import busy_cores
from tests.campaigns.faults import FLAGS, Fault, Faulted, Size, run_faults
from tests.campaigns.figures import Figure, at_most, judge, quantile, say
from tests.e2e.cluster import Cluster

EVERY_S = 10.0
MAX_STALL_P50_S = 1.0
MAX_STALL_P99_S = 5.0

PARTS = ("io", "fork server", "engine")
"""processes of a worker, each below the one before it; ranks are below an engine"""


@dataclass(frozen=True)
class Kill:
    """One kill -9, of a random process of a random worker of the role; of any role if none is
    given."""

    role: str | None = None
    whole: int = 1
    """workers that must be ready: where both of a role are gone, a stall lasts as long as a start,
    and how long that is, is the machine's"""

    async def __call__(self, cluster: Cluster, numbers: random.Random) -> bool:
        """False when there was nobody to kill, or one killed before is still starting."""
        workers = await asyncio.to_thread(cluster.workers, self.role)
        ready = [worker for worker in workers if worker["state"] == "ready"]
        if len(ready) < self.whole:
            return False
        worker = numbers.choice(ready)
        try:
            io = psutil.Process(worker["pid"])
            family = [io, *io.children(recursive=True)]
            at = numbers.randrange(len(family))
            os.kill(family[at].pid, signal.SIGKILL)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return False
        say(f"killed {worker['id']} ({PARTS[min(at, len(PARTS) - 1)]})")
        return True


ANYBODY = Kill()


async def run(
    folder: Path, size: Size, every_s: float = EVERY_S, fault: Fault = ANYBODY
) -> Faulted:
    return await run_faults(folder, size, every_s, fault)


def figures(faulted: Faulted, judges_stalls: bool = True) -> list[Figure]:
    if not judges_stalls:
        return faulted.figures()
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
    parser.add_argument("--every-s", type=float, default=EVERY_S, help="from kill to kill")
    parser.add_argument("--role", choices=("prefill", "decode"), help="kill only workers of it")
    parser.add_argument("--up", type=shlex.split, metavar="FLAGS", help="of `baton up`")
    arguments = parser.parse_args()
    size = Size(arguments.seconds, seed=arguments.seed, up=tuple(arguments.up or FLAGS))
    cores = busy_cores(os.cpu_count() or 1) if arguments.busy else nullcontext()
    fault = Kill(arguments.role)
    with tempfile.TemporaryDirectory() as folder, cores:
        faulted = asyncio.run(run(Path(folder), size, arguments.every_s, fault))
    return judge(figures(faulted, judges_stalls=arguments.up is None))


if __name__ == "__main__":
    sys.exit(main())
