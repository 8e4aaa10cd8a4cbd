"""The strikes of one request (R9): deaths, reports of them, and what is counted.

A request runs on a prefill and a decode worker at a time. They die and come back as another
incarnation, or their links break and come back. The gateway hears of it from its own link, or
first from the decode worker that lost its source, in any order. Every move is explored.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


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
    """queued, running, failed"""
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


def broken(story: Story, rules: Rules) -> str | None:
    """I10, or what is wrong with the way in which the request ended."""
    if len(story.strikes) > rules.max_strikes:
        return "I10 more strikes than the limit"
    if len(story.strikes) > len(story.deaths):
        return "I10 a strike without a death of its own"
    if story.state == "failed" and len(story.deaths) < rules.max_strikes:
        return "I10 it failed of fewer deaths than the limit"
    if story.state != "failed" and len(story.strikes) >= rules.max_strikes:
        return "I10 it goes on beyond the limit"
    return None


def explore(rules: Rules) -> tuple[int, str | None]:
    """(stories, the first violation)."""
    seen, queue = {Story()}, [Story()]
    for story in queue:
        for after in _moves(story, rules):
            if after in seen:
                continue
            seen.add(after)
            queue.append(after)
            violation = broken(after, rules)
            if violation:
                return len(seen), violation
    return len(seen), None


def _moves(story: Story, rules: Rules) -> Iterator[Story]:
    if story.state == "failed":
        return
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
    if lost.state == "failed":
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
    state = "failed" if len(strikes) >= rules.max_strikes else "queued"
    return story._replace(state=state, strikes=strikes)
