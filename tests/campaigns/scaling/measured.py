"""The simulator held against a real cell whose devices are paced: `make measured-run`.

    gateway, Redis, prefill and decode workers as processes on paced devices (paced_worker.py)
    `baton bench serve` at three loads --json--> `baton autoscaler simulate --measured`

What is real is all that the simulator leaves out: the wire, the host's work between two steps, the
hand-over, and loads that a router hears of late. Exit code 1: a figure is more than 10 % off, or a
share of requests in time more than 3 points. It needs cores that nothing else keeps busy.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from services.autoscaler.view import Promise
from services.simulator.measured_run import read_measured_run
from services.simulator.prediction import WITHIN, Prediction, predict
from services.simulator.report.comparison import compared
from shared.message_parts.step_costs import StepCosts
from shared.state.embedded import EmbeddedRedis
from tests.campaigns.figures import Figure, at_most, judge, say
from tests.campaigns.scaling.paced_worker import COSTS, MODULE
from tests.campaigns.slow_cell import stop_all
from tests.e2e.cluster import BATON
from tests.e2e.wire import free_port

NUM_PREFILL, NUM_DECODE = 4, 2
PREFILL = StepCosts(4e-3, 1e-4, 1e-8, 4e-4, 1e-9)
"""2,500 prompt tokens a second: a tenth of a GPU's, so that two cores are a host for ten devices"""
DECODE = StepCosts(6e-2, 3e-4, 5e-7, 4e-4, 1e-9)
RATES = (5.5, 7.2, 8.2)
"""a second: 0.63, 0.82 and 0.94 of what four workers compute"""
LOAD = ("--input", "200-2000", "--output", "10-60", "--ignore-eos", "--warmup", "4")
PROMISE = Promise(wait_s=1.0, gap_s=0.1)
SHARE_WITHIN = 0.03
READY_S = 120.0


@contextmanager
def paced_cell(folder: Path) -> Iterator[str]:
    """Its URL, once all workers are linked."""
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis())
        stack.callback(stop_all, processes)
        port = stack.enter_context(free_port())
        gateway = ("--port", str(port), "--topology", "pd")
        processes.append(_serve(folder, "gateway", redis.url, BATON, *gateway))
        paced = (sys.executable, "-m", MODULE)
        roles = [("prefill", PREFILL)] * NUM_PREFILL + [("decode", DECODE)] * NUM_DECODE
        for number, (role, costs) in enumerate(roles):
            name = ("--worker-id", f"{role}-{number}", "--kv-blocks", "4000")
            processes.append(_serve(folder, role, redis.url, paced, *name, costs=costs))
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url, len(roles))
        yield url


def _serve(
    folder: Path,
    role: str,
    redis_url: str,
    program: Sequence[str],
    *flags: str,
    costs: StepCosts = DECODE,
) -> subprocess.Popen[bytes]:
    command = [*program, "serve", role, "--redis", redis_url, "--parent-pid", str(os.getpid())]
    environment = {**os.environ, COSTS: ",".join(map(str, costs))}
    with (folder / f"{'-'.join((role, *flags[1:2]))}.log").open("wb") as sink:
        return subprocess.Popen(  # noqa: S603
            [*command, *flags], stdout=sink, stderr=sink, env=environment
        )


def _wait_ready(url: str, num_workers: int) -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s:
        try:
            workers = httpx.get(f"{url}/v1/baton/status").json()["workers"]
            if [worker["state"] for worker in workers] == ["ready"] * num_workers:
                return
        except (httpx.TransportError, KeyError):
            pass
        time.sleep(0.5)
    raise TimeoutError(f"not all workers of the cell were ready within {READY_S:g} s")


def measure(url: str, path: Path, seconds: float, rates: Sequence[float]) -> None:
    """`baton bench serve`, with its output shown."""
    rate = ("--rate", ",".join(f"{rate:g}" for rate in rates), "--duration", f"{seconds:g}")
    record = ("--no-ideal", "--max-lag-ms", "50", "--json", str(path))
    command = [*BATON, "bench", "serve", "--url", url, *rate, *LOAD, *record]
    subprocess.run(command, check=True)  # noqa: S603


def figures(prediction: Prediction) -> Iterator[Figure]:
    for row in prediction.rows:
        name = f"{row.load}, {row.name} p{100 * row.quantile:g}: off by"
        yield at_most(name, abs(row.off), WITHIN)
    for share in prediction.shares:
        off = abs(share.predicted - share.measured)
        yield at_most(f"{share.load}, share in time: off by", off, SHARE_WITHIN)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="of each load")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.jsonl"
        with paced_cell(Path(name)) as url:
            measure(url, path, options.seconds, RATES)
        run = read_measured_run(path)
    prediction = predict(run, PROMISE)
    say(compared(run, prediction))
    return judge(list(figures(prediction)))


if __name__ == "__main__":
    sys.exit(main())
