"""Faults, one after the other, in a cell under load.

the answers in calm
-> load; a fault, a pause, the next one; after each 50 quiet: all must be as at the start
-> every request judged
"""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from services.cli.chaos.asks import Ask, make_asks
from services.cli.chaos.cell import Cell
from services.cli.chaos.fault import Injected, Kind, NotInjectedError, Scene
from services.cli.chaos.history import Histories
from services.cli.chaos.ledger import Ledger
from services.cli.chaos.load import Asked, Load, keep_open
from services.cli.chaos.memory import Growth, MemoryLog
from services.cli.chaos.oracle import Tally, Verdict, judge
from shared.errors import BatonError

NUM_ASKS = 48
"""different requests; each is asked for again and again"""
NUM_STREAMS = 12
LEAST_MARGIN = 0.05
"""in log-probability, between the two likeliest tokens at each step of an answer. On a GPU sums
depend a little on what is computed together, by less than that in float32"""
LEAST_ASKS = 8
QUIET_EVERY = 50
RECOVERY_S = 70.0
"""from a fault's end on until each role has as many ready workers as the next fault wants: what has
died too often in a minute starts again after it"""
QUIET_S = 70.0
"""to answer what is under way, and to be whole"""
REST_S = 15.0
"""until nothing lives and no block is held"""
SETTLE_S = 60.0
POLL_S = 0.2
MOST_DRAWS = 50
"""for one fault: those that have nobody to hit are drawn again"""


@dataclass(frozen=True)
class Plan:
    """What is to happen."""

    num_faults: int
    seed: int
    kinds: Sequence[Kind]
    pause_s: float
    """between two faults, on average"""
    exact: bool = True
    """an answer depends on nothing but its request, as on a CPU"""


@dataclass
class Outcome:
    """What happened."""

    faults: list[Injected] = field(default_factory=list)
    verdicts: list[tuple[Asked, Verdict]] = field(default_factory=list)
    not_injected: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """of the cell's state: blocks, processes, recovery"""
    num_leaked: int = 0
    """blocks"""
    num_histories: int = 0
    """requests whose history was read at their gateway"""
    growths: list[Growth] = field(default_factory=list)
    """of the memory of processes that no fault hit"""
    seconds: float = 0.0

    @property
    def tally(self) -> Tally:
        tally = Tally()
        for asked, verdict in self.verdicts:
            tally.add(asked, verdict)
        return tally


async def run_campaign(cell: Cell, plan: Plan, model: str, say: Callable[[str], None]) -> Outcome:
    numbers = random.Random(plan.seed)  # noqa: S311
    urls = [gateway.url for gateway in cell.gateways]
    known = await known_answers(urls, model, make_asks(NUM_ASKS, numbers, exact=plan.exact))
    say(f"{len(known)} of {NUM_ASKS} answers are known in calm, and certain")
    load = Load(urls, model, numbers)
    campaign = _Campaign(cell, plan, load, list(known), say)
    await campaign.run()
    outcome = campaign.outcome
    outcome.verdicts = [
        (asked, judge(asked, known, outcome.faults, campaign.ledger.of(asked)))
        for asked in load.asked
    ]
    return outcome


async def watch(
    urls: Sequence[str], model: str, seed: int, seconds: float, say: Callable[[str], None]
) -> Outcome:
    """A cell that somebody else breaks: its answers only. A gateway that goes may cut its clients;
    they ask another one, or the same address, again."""
    numbers = random.Random(seed)  # noqa: S311
    known = await known_answers(urls, model, make_asks(NUM_ASKS, numbers, exact=False))
    say(f"{len(known)} of {NUM_ASKS} answers are known in calm, and certain")
    say(f"now break what you like, for {seconds:g} s")
    load = Load(urls, model, numbers)
    begin_s = time.monotonic()
    steady = list(known)
    endless = (numbers.choice(steady) for _ in itertools.count())
    await keep_open(load.send, endless, NUM_STREAMS, lambda: time.monotonic() - begin_s < seconds)
    anything = Injected("outside", "", 0.0, math.inf, cuts_gateway=True)
    outcome = Outcome(seconds=time.monotonic() - begin_s)
    outcome.verdicts = [(asked, judge(asked, known, [anything], {})) for asked in load.asked]
    return outcome


async def known_answers(urls: Sequence[str], model: str, asks: Sequence[Ask]) -> dict[Ask, str]:
    """Those whose tokens are certain. BatonError if one fails, or hardly any is certain: then
    nothing can be said of faults."""
    load = Load(urls, model, random.Random(0))  # noqa: S311
    await keep_open(load.send, asks, NUM_STREAMS)
    failed = [asked.last for asked in load.asked if not asked.last.whole]
    if failed:
        raise BatonError(f"in calm a request failed: {failed[0].status} {failed[0].error}")
    known = {
        asked.ask: asked.last.text for asked in load.asked if asked.last.margin >= LEAST_MARGIN
    }
    if len(known) < LEAST_ASKS:
        raise BatonError(
            f"only {len(known)} of {len(asks)} answers are certain: in the others two tokens are "
            "equally likely somewhere, and which one comes depends on what is computed together"
        )
    return known


class _Campaign:
    def __init__(
        self,
        cell: Cell,
        plan: Plan,
        load: Load,
        asks: Sequence[Ask],
        say: Callable[[str], None],
    ) -> None:
        self.outcome = Outcome()
        self.ledger = Ledger(cell, load)
        self._cell = cell
        self._plan = plan
        self._load = load
        self._asks = asks
        self._say = say
        self._numbers = random.Random(plan.seed + 1)  # noqa: S311
        self._deck: list[Kind] = []
        self._going = False
        self._memory = MemoryLog(cell.spared_processes)
        self._histories = Histories(cell.gateways)

    async def run(self) -> None:
        begin_s = time.monotonic()
        keeping = [asyncio.create_task(each.keep()) for each in (self.ledger, self._memory)]
        try:
            for first in range(0, self._plan.num_faults, QUIET_EVERY):
                num = min(QUIET_EVERY, self._plan.num_faults - first)
                await self._under_load(num)
                await self._quiet()
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
        self._look_at_memory()
        if not await self.ledger.settle(SETTLE_S):
            self.outcome.violations.append("records could not be read: Redis does not answer")
        self.outcome.seconds = time.monotonic() - begin_s

    async def _under_load(self, num_faults: int) -> None:
        self._going = True
        endless = (self._numbers.choice(self._asks) for _ in itertools.count())
        loading = asyncio.create_task(
            keep_open(self._load.send, endless, NUM_STREAMS, lambda: self._going)
        )
        try:
            for _ in range(num_faults):
                await asyncio.sleep(self._numbers.expovariate(1 / self._plan.pause_s))
                await self._one_fault()
        except BaseException:
            loading.cancel()
            raise
        self._going = False
        await loading

    async def _one_fault(self) -> None:
        """Of the next kind that finds somebody to hit."""
        for _ in range(MOST_DRAWS):
            kind = self._draw()
            if not await self._cell.wait_ready(kind.least_ready, RECOVERY_S):
                self.outcome.violations.append(
                    f"not recovered {RECOVERY_S:g} s after {self._last}: {await self._who()}"
                )
                continue
            if await self._inject(kind):
                return
        raise BatonError("no fault finds anybody to hit")

    async def _inject(self, kind: Kind) -> bool:
        scene = Scene(self._cell, self._load, self._numbers)
        begin_s = time.monotonic()
        try:
            what = await kind.inject(scene)
        except NotInjectedError as error:
            self.outcome.not_injected.append(f"{kind.name}: {error}")
            self._say(f"       not seen: {kind.name}: {error}")
            return False
        except (ProcessLookupError, psutil.NoSuchProcess):  # it was gone before anything happened
            return False
        if what is None:
            return False
        fault = Injected(kind.name, what, begin_s, time.monotonic(), kind.cuts_gateway)
        self.outcome.faults.append(fault)
        number, ended = len(self.outcome.faults), len(self._load.ended)
        self._say(f"{number:5d}  {kind.name}: {what}  [{ended} requests done]")
        return True

    def _draw(self) -> Kind:
        """Every kind comes once before one comes again."""
        if not self._deck:
            self._deck = self._numbers.sample(list(self._plan.kinds), len(self._plan.kinds))
        return self._deck.pop()

    @property
    def _last(self) -> str:
        faults = self.outcome.faults
        return f"{faults[-1].kind} ({faults[-1].what})" if faults else "the start"

    async def _who(self) -> str:
        ready = await self._cell.ready()
        return ", ".join(f"{len(found)} {role} ready" for role, found in ready.items())

    async def _quiet(self) -> None:
        """Nobody asks: everything is as at the start."""
        if not await self._cell.wait_whole(QUIET_S):
            self.outcome.violations.append(f"not whole after {QUIET_S:g} s: {await self._who()}")
        await self._look_for_unrest()
        self.outcome.violations += await self._histories.read()
        self.outcome.num_histories = len(self._histories)
        self.outcome.violations += self._cell.unexplained_exits()

    def _look_at_memory(self) -> None:
        found = self.outcome.growths = self._memory.growths()
        self.outcome.violations += [
            f"{name} ended, and was to be spared" for name in self._memory.gone
        ]
        self.outcome.violations += [
            f"the memory of {name} was not seen all the time" for name in self._memory.unjudged()
        ]
        self.outcome.violations += [f"{one.name} grows: {one}" for one in found if one.too_much]

    async def _look_for_unrest(self) -> None:
        """For what is not as at the start, and does not become so."""
        end_s = time.monotonic() + REST_S
        unrest = await self._cell.unrest()
        while unrest and time.monotonic() < end_s:
            await asyncio.sleep(POLL_S)
            unrest = await self._cell.unrest()
        if unrest:
            self.outcome.violations.append(unrest.text)
            self.outcome.num_leaked += unrest.num_leaked
