"""`make fair-shares`: two tenants, one of which sends ten times as much as the other.

    3 times what the cell serves, at once         the small one asks for less than its share
    each more than its share, in turn with answers of equal length, of unequal length either way,
    and with twice the weight

The first shows that whoever asks for less than a share is served as if it were alone, the others
that what is served, in tokens computed for prompts and sampled for answers, is shared by weight.
"""

import argparse
import asyncio
import hashlib
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.figures import Figure, at_least, at_most, exactly, judge, say
from tests.campaigns.load import Ask, Asked, Load, random_ask
from tests.e2e.cluster import Cluster, running

FLAGS = ("--topology", "agg", "--decode", "1", "--threads", "1")
SMALL = {"BATON_MAX_NUM_SEQS": "8", "BATON_MAX_NUM_BATCHED_TOKENS": "64", "BATON_MAX_BACKLOG": "24"}
"""few requests on the worker and in the line, so that what is served is shared within seconds"""
PROMPT_TOKENS = (17, 60)
SHORT, MIDDLE, LONG = (20, 60), (60, 180), (120, 360)
"""tokens of an answer"""
NUM_STREAMS = 24
"""of the closed loop that tells what the cell serves"""
TIMES_SENT = 10
OVERLOAD = 3.0
BEYOND_SHARE = 2.5
"""what the smaller one asks for, by its share: enough although the machine is faster at times"""
LEAST_ASKED = 1.1
"""of it, by what turned out to be its share; with less it could not be served that"""
MAX_OFF = 0.05
LEAST_ANSWERED = 0.97
KEYS = {"many": "key-of-many", "few": "key-of-few"}
"""by tenant"""


@dataclass(frozen=True)
class Size:
    """In seconds."""

    capacity_s: float = 20.0
    each_s: float = 180.0


@dataclass(frozen=True)
class Case:
    """How the tenants differ, `many` first."""

    name: str
    answers: tuple[tuple[int, int], tuple[int, int]] = (MIDDLE, MIDDLE)
    weights: tuple[int, int] = (1, 1)
    overload: float | None = None
    """what both ask for, by what is served; None: the smaller one for BEYOND_SHARE"""

    @property
    def shares(self) -> tuple[float, float]:
        """Of what is served, where both ask for more."""
        total = sum(self.weights)
        return self.weights[0] / total, self.weights[1] / total

    def asked(self, tokens_per_s: float) -> tuple[float, float]:
        """Tokens a second that each asks for."""
        if self.overload is not None:
            few = tokens_per_s * self.overload / (1 + TIMES_SENT)
        else:
            few = tokens_per_s * self.shares[1] * BEYOND_SHARE
        return TIMES_SENT * few, few


CASES = (
    Case("3 times at once", overload=OVERLOAD),
    Case("answers of equal length"),
    Case("the one that sends more has the longer answers", (LONG, SHORT)),
    Case("the one that sends more has the shorter answers", (SHORT, LONG)),
    Case("twice the weight to the one that sends more", weights=(2, 1)),
    Case("twice the weight to the one that sends less", weights=(1, 2)),
)


@dataclass
class Shares:
    """What became of one case."""

    case: Case
    served: tuple[float, float]
    """tokens"""
    asked: tuple[list[Asked], list[Asked]]

    @property
    def off(self) -> float:
        """How far the smaller one's share is from its due, by that."""
        due = self.case.shares[1]
        return self.served[1] / sum(self.served) / due - 1

    @property
    def demand(self) -> float:
        """What the smaller one asked for, by its share of what was served."""
        tokens = sum(len(one.ask.prompt) + one.ask.max_tokens for one in self.asked[1])
        return tokens / (sum(self.served) * self.case.shares[1])

    @property
    def num_lost(self) -> int:
        return sum(one.lost for each in self.asked for one in each)

    def tell(self) -> None:
        counts = [f"{sum(one.last.complete for one in each)}/{len(each)}" for each in self.asked]
        say(
            f"{self.case.name}: served {self.served[0]:.0f} and {self.served[1]:.0f} tokens,"
            f" the smaller one {self.off:+.1%} off its share; answered {' and '.join(counts)}"
        )

    def figures(self) -> list[Figure]:
        name = self.case.name
        lost = exactly(f"{name}: admitted and not answered", self.num_lost)
        if self.case.overload is None:
            demand = at_least(f"{name}: asked for, by its share", self.demand, LEAST_ASKED)
            return [demand, at_most(f"{name}: off its share", abs(self.off), MAX_OFF), lost]
        few = self.asked[1]
        answered = sum(one.last.complete for one in few) / len(few)
        return [at_least(f"{name}: answered of the smaller one", answered, LEAST_ANSWERED), lost]


def served_tokens(asked: Sequence[Asked], begin_s: float, end_s: float) -> float:
    """Computed and sampled in this time; an answer's come evenly between its first and last."""
    total = 0.0
    for one in asked:
        stream = one.last
        if not stream.complete:
            continue
        first_s, last_s = stream.sent_s + stream.first_s, stream.sent_s + stream.end_s
        inside_s = max(0.0, min(last_s, end_s) - max(first_s, begin_s))
        total += stream.completion_tokens * inside_s / max(last_s - first_s, 1e-9)
        total += len(one.ask.prompt) * (begin_s <= first_s < end_s)
    return total


def drawn_asks(seed: int, answer: tuple[int, int]) -> Iterator[Ask]:
    numbers = random.Random(seed)  # noqa: S311
    for _ in itertools.count():
        yield random_ask(numbers, PROMPT_TOKENS, numbers.randint(*answer))


def mean_tokens(answer: tuple[int, int]) -> float:
    """Of a request."""
    return sum(PROMPT_TOKENS) / 2 + sum(answer) / 2


def write_keys(path: Path, weights: Sequence[int]) -> None:
    entries = [
        f'[[keys]]\ntenant = "{tenant}"\nweight = {weight}\n'
        f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
        for (tenant, key), weight in zip(KEYS.items(), weights, strict=True)
    ]
    path.write_text("".join(entries))


async def capacity(cluster: Cluster, seconds: float) -> float:
    """Tokens a second, of a closed loop that always waits."""
    load, begin_s = load_of(cluster, "many"), time.monotonic()
    end_s = begin_s + seconds
    await load.keep_open(drawn_asks(0, MIDDLE), NUM_STREAMS, lambda: time.monotonic() < end_s)
    return served_tokens(load.asked, begin_s + seconds / 3, end_s) / (seconds * 2 / 3)


def load_of(cluster: Cluster, tenant: str) -> Load:
    key = f"authorization: Bearer {KEYS[tenant]}\r\n"
    return Load(cluster.url, cluster.model(), key, cluster.status()["admin_url"])


async def offer(cluster: Cluster, case: Case, size: Size, tokens_per_s: float) -> Shares:
    loads = [load_of(cluster, tenant) for tenant in KEYS]
    begin_s, seconds = time.monotonic(), size.each_s
    async with asyncio.TaskGroup() as tasks:
        drawn = zip(loads, case.asked(tokens_per_s), case.answers, strict=True)
        for seed, (load, wanted, answer) in enumerate(drawn, 1):
            per_s, asks = wanted / mean_tokens(answer), drawn_asks(seed, answer)
            tasks.create_task(load.poisson(asks, per_s, seconds, seed, retries=0))
    many, few = (load.asked for load in loads)
    window = begin_s, begin_s + seconds
    served = served_tokens(many, *window), served_tokens(few, *window)
    shares = Shares(case, served, (many, few))
    shares.tell()
    return shares


async def run_case(folder: Path, size: Size, case: Case) -> list[Figure]:
    keys = folder / "keys.toml"
    write_keys(keys, case.weights)
    with running(folder, *FLAGS, **SMALL, BATON_API_KEYS_FILE=str(keys)) as cluster:
        cluster.client.headers["authorization"] = f"Bearer {KEYS['few']}"
        tokens_per_s = await capacity(cluster, size.capacity_s)
        say(f"the cell serves {tokens_per_s:.0f} tokens/s")
        shares = await offer(cluster, case, size, tokens_per_s)
        await asyncio.to_thread(cluster.wait_blocks_back)
    return shares.figures()


async def run(folder: Path, size: Size, cases: Sequence[Case] = CASES) -> list[Figure]:
    figures: list[Figure] = []
    for number, case in enumerate(cases):
        place = folder / str(number)
        place.mkdir()
        figures += await run_case(place, size, case)
    return figures


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=Size.each_s, help="of each case")
    parser.add_argument("--cases", default="", help="numbers of those to run, from 0: 1,2")
    given = parser.parse_args(arguments)
    numbers = given.cases.split(",") if given.cases else range(len(CASES))
    cases = [CASES[int(number)] for number in numbers]
    with tempfile.TemporaryDirectory() as folder:
        return judge(asyncio.run(run(Path(folder), Size(each_s=given.seconds), cases)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
