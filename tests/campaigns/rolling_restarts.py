"""`make restarts`: workers restarted in turn, and decode shrunk to one and grown again,
under load. Each answer is whole and right; nobody is refused for it."""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.state.embedded import EmbeddedRedis
from tests.campaigns.figures import Figure, at_least, exactly, judge, say
from tests.campaigns.load import (
    Ask,
    Load,
    describe_lost,
    known_answers,
    num_wrong,
    random_ask,
)
from tests.e2e.cluster import Cell, Cluster

NUM_DECODE = 4
WORKERS = (
    ("prefill", "prefill-0"),
    ("prefill", "prefill-1"),
    *(("decode", f"decode-{at}") for at in range(NUM_DECODE)),
)
FLAGS = ("--kv-blocks", "1024", "--threads", "1", "--drain-s", "120")
PROMPT_TOKENS = (17, 400)
ANSWER_TOKENS = (20, 300)
NUM_ASKS = 32
READY_S = 90.0
FEW_S = 3.0
"""for which only one worker of the role is left"""


@dataclass(frozen=True)
class Size:
    """How much of it."""

    num_restarts: int = 100
    num_resizes: int = 5
    num_streams: int = 8
    seed: int = 1


@contextmanager
def rolling_cell(folder: Path) -> Iterator[tuple[Cell, Cluster]]:
    with ExitStack() as stack:
        cell = stack.enter_context(closing(Cell(folder, stack.enter_context(EmbeddedRedis()))))
        for role, name in WORKERS:
            cell.serve(role, "--worker-id", name, *FLAGS, name=name)
        gateway = cell.gateway("gateway", "--topology", "pd", num_workers=len(WORKERS))
        yield cell, stack.enter_context(gateway)


def restart(cell: Cell, cluster: Cluster, role: str, name: str) -> None:
    """As an update does it: SIGTERM, and another once it has ended."""
    cell.stop(name)
    cell.serve_again(role, name)
    wait_whole(cluster)


def resize(cell: Cell, cluster: Cluster) -> None:
    """Decode: to one worker, and back."""
    gone = [name for role, name in WORKERS if role == "decode"][1:]
    cell.stop_together(gone)
    cluster.wait(lambda: len(cluster.workers("decode")) == 1, READY_S)
    time.sleep(FEW_S)
    for name in gone:
        cell.serve_again("decode", name)
    wait_whole(cluster)


def wait_whole(cluster: Cluster) -> None:
    ready = ["ready"] * len(WORKERS)
    cluster.wait(lambda: [worker["state"] for worker in cluster.workers()] == ready, READY_S)


async def run(folder: Path, size: Size) -> list[Figure]:
    numbers = random.Random(size.seed)  # noqa: S311
    asks = [
        random_ask(numbers, PROMPT_TOKENS, numbers.randint(*ANSWER_TOKENS)) for _ in range(NUM_ASKS)
    ]
    with rolling_cell(folder) as (cell, cluster):
        answers = await known_answers(cluster.url, cluster.model(), asks, size.num_streams)
        load, going = Load(cluster.url, cluster.model()), True
        endless: Iterator[Ask] = (numbers.choice(asks) for _ in itertools.count())
        loading = asyncio.create_task(load.keep_open(endless, size.num_streams, lambda: going))
        workers = itertools.cycle(WORKERS)
        for number in range(size.num_restarts):
            await asyncio.to_thread(restart, cell, cluster, *next(workers))
            say(f"{number + 1} restarts, {len(load.asked)} requests")
        for number in range(size.num_resizes):
            await asyncio.to_thread(resize, cell, cluster)
            say(f"{number + 1} resizes, {len(load.asked)} requests")
        going = False
        await loading
        await asyncio.to_thread(cluster.wait_blocks_back)
    say(describe_lost(load.asked))
    answers_seen = [stream for asked in load.asked for stream in asked.streams]
    refused = [stream for stream in answers_seen if stream.status in (429, 503)]
    return [
        at_least("requests", len(load.asked), size.num_restarts + size.num_resizes),
        exactly("answers that refuse, 429 or 503", len(refused)),
        exactly("accepted requests lost", sum(asked.lost for asked in load.asked)),
        exactly("answers that are wrong", num_wrong(load.asked, answers)),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=Size.num_restarts)
    parser.add_argument("--resizes", type=int, default=Size.num_resizes)
    parser.add_argument("--seed", type=int, default=Size.seed)
    given = parser.parse_args(arguments)
    size = Size(given.restarts, given.resizes, seed=given.seed)
    with tempfile.TemporaryDirectory() as folder:
        return judge(asyncio.run(run(Path(folder), size)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
