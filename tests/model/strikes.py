"""The strikes of one request (R9) and its deadline: what is counted, and what ends it.

A request runs on a prefill and a decode worker at a time. They die and come back as another
incarnation, or their links break and come back. The gateway hears of it from its own link, or
first from the decode worker that lost its source, in any order. The request's time may be up at any
moment, while it runs, waits for a worker or has ended. Its client is told how it ended once FINISH
is answered or late (R4): of that the gateway hears twice where the answer comes just then. No
worker need do anything for the request to end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tests.model.search import Model, Move, Verdict, search


@dataclass(frozen=True)
class Rules:
    """Size of one search, and the rules taken out."""

    max_strikes: int = 4
    max_incs: int = 3
    """incarnations of each worker"""
    max_flaps: int = 1
    max_bursts: int = 1
    """times that enough tokens come for the strikes to fall away"""
    mutant: str = ""


class Story(NamedTuple):
    """Workers are "p" and "d"; a death is (worker, incarnation)."""

    prefill_incarnation: int = 0
    decode_incarnation: int = 0
    state: str = "queued"
    """queued, running, finishing (FINISH is not answered yet), ended"""
    outcome: str = ""
    """exhausted, late, done, left"""
    assigned: tuple[int, int] = (0, 0)
    """the incarnations that the attempt runs on"""
    dead: frozenset[tuple[str, int]] = frozenset()
    """whose link the gateway still has"""
    strikes: tuple[frozenset[tuple[str, int]], ...] = ()
    """the suspects of each"""
    deaths: frozenset[tuple[str, int]] = frozenset()
    """that hit an attempt of this request since the strikes fell away"""
    num_flaps: int = 0
    num_bursts: int = 0
    late: bool = False
    """its time is up"""
    num_answers: int = 0
    """to FINISH, that it is late among them"""
    num_told: int = 0
    """times that the client heard how it ended"""


def broken(story: Story, rules: Rules) -> str | None:
    """I10, or what is wrong with the way in which the request ended."""
    if len(story.strikes) > rules.max_strikes:
        return "I10 more strikes than the limit"
    if len(story.strikes) > len(story.deaths):
        return "I10 a strike without a death of its own"
    if story.outcome == "exhausted" and len(story.deaths) < rules.max_strikes:
        return "I10 it failed of fewer deaths than the limit"
    if story.state in ("queued", "running") and len(story.strikes) >= rules.max_strikes:
        return "I10 it goes on beyond the limit"
    if story.outcome == "late" and not story.late:
        return "I12 its time was not up"
    return "I12 the client hears of two ends" if story.num_told > 1 else None


def settled(story: Story) -> bool:
    return story.state == "ended" and story.num_told == 1


def explore(rules: Rules) -> Verdict:
    start = Story()
    return search(Model(start, partial(_moves, rules=rules), partial(broken, rules=rules), settled))


def _moves(story: Story, rules: Rules) -> Iterator[Move[Story]]:
    """Only the clock and FINISH are sure to go on."""
    for after in _clock(story, rules):
        yield Move("the clock", after)
    for after in _answers(story, rules):
        yield Move("an answer to FINISH, or none in time", after)
    for after in _others(story, rules):
        yield Move("workers, or the client", after, environment=True)


def _clock(story: Story, rules: Rules) -> Iterator[Story]:
    """What is over ends no second time, whatever ended it."""
    if not story.late:
        yield story._replace(late=True)
        return
    if rules.mutant == "lateness is a strike" and story.state == "running":
        yield _strike(story, rules, frozenset({("d", story.assigned[1])}))
        return
    waits_too = rules.mutant != "only what runs is late" and story.state == "queued"
    again = rules.mutant == "late at any time" and story.outcome != "late"
    if (story.state == "running" or waits_too or again) and rules.mutant != "no deadline":
        yield story._replace(state="finishing", outcome="late", num_answers=0)


def _answers(story: Story, rules: Rules) -> Iterator[Story]:
    if story.state not in ("finishing", "ended") or story.num_answers == 2:
        return
    tells = story.state == "finishing" or rules.mutant == "told at each answer"
    yield story._replace(
        state="ended",
        num_answers=story.num_answers + 1,
        num_told=min(story.num_told + tells, 2),
    )


def _others(story: Story, rules: Rules) -> Iterator[Story]:
    if story.state in ("finishing", "ended"):
        return
    yield story._replace(state="finishing", outcome="left")
    if story.state == "queued":
        yield _assign(story, rules)
    else:
        yield from _running(story, rules)
    for worker in ("p", "d"):
        yield from _die(story, rules, worker)
        yield from _close(story, rules, worker)


def _assign(story: Story, rules: Rules) -> Story:
    """The gateway may know no better than to choose one that is dead."""
    workers = {("p", story.prefill_incarnation), ("d", story.decode_incarnation)}
    running = story._replace(
        state="running",
        assigned=(story.prefill_incarnation, story.decode_incarnation),
        deaths=story.deaths | (workers & story.dead),
    )
    if rules.mutant == "strike at assignment":
        return running._replace(strikes=(*story.strikes, frozenset()))
    return running


def _running(story: Story, rules: Rules) -> Iterator[Story]:
    p, d = ("p", story.assigned[0]), ("d", story.assigned[1])
    yield story._replace(state="queued")  # given back: R10
    if not story.dead:
        yield story._replace(state="finishing", outcome="done")
    if p in story.dead and d not in story.dead:
        yield _strike(story, rules, frozenset({p, d}))  # decode says so first
    if not story.dead and story.num_bursts < rules.max_bursts:
        kept = story.strikes if rules.mutant == "strikes never fall away" else ()
        yield story._replace(strikes=kept, deaths=frozenset(), num_bursts=story.num_bursts + 1)
    for worker in (p, d):
        if worker not in story.dead and story.num_flaps < rules.max_flaps:
            yield _flap(story, rules, worker)


def _flap(story: Story, rules: Rules, worker: tuple[str, int]) -> Story:
    """A link breaks, and the same incarnation is back before anything else happens."""
    feared = story._replace(deaths=story.deaths | {worker})
    lost = _strike(feared, rules, frozenset({worker}))
    if lost.state == "finishing":
        return lost._replace(num_flaps=story.num_flaps + 1)
    kept = tuple(suspects for suspects in lost.strikes if worker not in suspects)
    if rules.mutant == "partitions count":
        kept = lost.strikes
    return lost._replace(strikes=kept, deaths=story.deaths, num_flaps=story.num_flaps + 1)


def _die(story: Story, rules: Rules, worker: str) -> Iterator[Story]:
    inc = story.prefill_incarnation if worker == "p" else story.decode_incarnation
    if (worker, inc) in story.dead or inc + 1 >= rules.max_incs:
        return
    held = story.state == "running" and story.assigned["pd".index(worker)] == inc
    deaths = story.deaths | {(worker, inc)} if held else story.deaths
    yield story._replace(dead=story.dead | {(worker, inc)}, deaths=deaths)


def _close(story: Story, rules: Rules, worker: str) -> Iterator[Story]:
    """The gateway sees the link of a dead worker close; it is back as another incarnation."""
    inc = story.prefill_incarnation if worker == "p" else story.decode_incarnation
    if (worker, inc) not in story.dead:
        return
    held = story.state == "running" and story.assigned["pd".index(worker)] == inc
    after = story._replace(dead=story.dead - {(worker, inc)})
    after = (
        after._replace(prefill_incarnation=inc + 1)
        if worker == "p"
        else after._replace(decode_incarnation=inc + 1)
    )
    yield _strike(after, rules, frozenset({(worker, inc)})) if held else after


def _strike(story: Story, rules: Rules, suspects: frozenset[tuple[str, int]]) -> Story:
    """An attempt has ended badly. What a suspect does next is no other death."""
    known = [at for at, earlier in enumerate(story.strikes) if earlier & suspects]
    strikes = story.strikes
    if known and rules.mutant != "one death, two strikes":
        if len(suspects) == 1:
            strikes = (*strikes[: known[0]], suspects, *strikes[known[0] + 1 :])
    else:
        strikes = (*strikes, suspects)
    if len(strikes) >= rules.max_strikes:
        return story._replace(state="finishing", outcome="exhausted", strikes=strikes)
    return story._replace(state="queued", strikes=strikes)
