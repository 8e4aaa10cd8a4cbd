"""What every request of a campaign must have become. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from services.cli.chaos.asks import Ask
from services.cli.chaos.attempt import OK, REFUSED, Attempt
from services.cli.chaos.cell import GATEWAYS
from services.cli.chaos.fault import Injected
from services.cli.chaos.ledger import Record
from services.cli.chaos.load import Asked
from shared.state.records import RequestState

BEFORE_S, AFTER_S = 1.0, 6.0
"""around a fault of a gateway, in which its connections may end"""
ANSWERED, REFUSED_ALWAYS, LEFT, LOST = "answered", "refused", "left", "lost"
UNREAD = "unread"
"""its gateway was ended between the last token and the client: by its key it was computed, and the
answer is not kept"""
DONE = "is done"
"""of such a request, in the words of the refusal"""


@dataclass(frozen=True)
class Verdict:
    """On one request."""

    outcome: str
    problems: tuple[str, ...] = ()
    """what must not be; each begins with its kind"""
    hit: bool = False
    """the system needed several attempts"""


@dataclass
class Tally:
    """Of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    """by kind"""
    texts: list[str] = field(default_factory=list)

    def add(self, asked: Asked, verdict: Verdict) -> None:
        self.outcomes[verdict.outcome] += 1
        self.outcomes["hit"] += verdict.hit
        for problem in verdict.problems:
            self.problems[problem.partition(":")[0]] += 1
            self.texts.append(f"{problem}; {'; '.join(story(asked.attempts))}")


def judge(
    asked: Asked,
    known: Mapping[Ask, str],
    faults: Sequence[Injected],
    records: Mapping[str, Record | None],
) -> Verdict:
    """`known`: the texts of answers in calm, each of `max_tokens` tokens. `records`: of those of
    its attempts whose record could be read; None: there was none."""
    text, last = known[asked.ask], asked.last
    problems = [*_tokens(asked.attempts, asked.ask, text), *_bills(asked, records)]
    problems += [problem for one in asked.attempts if (problem := _loss(one, faults))]
    hit = _was_hit(asked, records)
    if last.whole:
        return Verdict(ANSWERED, tuple(problems), hit)
    if last.left and not last.error:
        return Verdict(LEFT, tuple(problems), hit)
    if last.ended_before and DONE in last.error:
        return Verdict(UNREAD, tuple(problems), hit)
    accepted = any(one.status == OK for one in asked.attempts)
    if last.status in REFUSED and not accepted and not last.ended_before:
        return Verdict(
            REFUSED_ALWAYS, (*problems, f"refused: for as long as it asked: {last.error}")
        )
    if not any(problem.startswith("lost") for problem in problems):
        problems.append(
            f"lost: its last attempt ended with {last.status} {last.error or last.broken}"
        )
    return Verdict(LOST, tuple(problems), hit)


def _loss(attempt: Attempt, faults: Sequence[Injected]) -> str:
    """Why this attempt was lost, whatever came after it; empty if it was not."""
    if attempt.status == OK and attempt.error:
        return f"lost: {attempt.error}"
    if attempt.failed:
        return f"lost: {attempt.status} {attempt.error or 'no [DONE], no error'}"
    received = attempt.broken and attempt.connected and not attempt.left
    if received and not is_cut(attempt, faults):
        return f"lost: its connection ended: {attempt.broken}"
    return ""


def story(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Those that were refused alike, one after the other, are told once."""
    for _, alike in groupby(attempts, lambda one: (one.gateway, one.status)):
        first, *others = alike
        yield _describe(first)
        if first.status == OK:
            yield from map(_describe, others)
        elif others:
            yield f"{len(others)} more like it"


def _describe(attempt: Attempt) -> str:
    end = attempt.broken or attempt.error or ("whole" if attempt.whole else "no end")
    return (
        f"request {attempt.rid or 'unknown'} at gateway {attempt.gateway + 1}: {attempt.status}, "
        f"{attempt.num_tokens} tokens, {end[:120]} after {attempt.end_s - attempt.sent_s:.1f} s"
    )


def is_cut(attempt: Attempt, faults: Iterable[Injected]) -> bool:
    """Its gateway was ended, and its connection with it."""
    return not attempt.hangs and any(
        fault.cuts_gateway
        and fault.what.partition(":")[0] in ("", *GATEWAYS[attempt.gateway : attempt.gateway + 1])
        and fault.begin_s - BEFORE_S <= attempt.end_s <= fault.end_s + AFTER_S
        for fault in faults
    )


def _tokens(attempts: Iterable[Attempt], ask: Ask, text: str) -> Iterable[str]:
    for attempt in attempts:
        if attempt.num_tokens > ask.max_tokens:
            yield f"duplicated: {attempt.num_tokens} tokens of {ask.max_tokens}"
        if attempt.whole and (attempt.text != text or attempt.num_tokens < ask.max_tokens):
            num = f"{attempt.num_tokens} of {ask.max_tokens} tokens"
            yield f"wrong: {num}, {_differ(attempt, text)}"
        elif not text.startswith(attempt.text):
            yield f"wrong: of an answer that was cut {_differ(attempt, text)}"


def _differ(attempt: Attempt, text: str) -> str:
    same = next(
        (at for at, (a, b) in enumerate(zip(attempt.text, text, strict=False)) if a != b),
        min(len(attempt.text), len(text)),
    )
    return f"the text differs from character {same} on"


def _bills(asked: Asked, records: Mapping[str, Record | None]) -> Iterable[str]:
    """All requests with one key are billed together what one answer costs, and never more."""
    found = {one.rid: records[one.rid] for one in asked.attempts if one.rid in records}
    if None in found.values():
        yield "unrecorded: a request has no record"
    known = [record for record in found.values() if record is not None]
    if any(record.state == RequestState.LIVE for record in known):
        yield "unrecorded: a record says long after its end that the request lives"
    billed = sum(record.num_billed for record in known)
    if billed > asked.ask.max_tokens:
        yield f"billed twice: {billed} tokens of {asked.ask.max_tokens}"
    last, num_delivered = found.get(asked.last.rid), asked.last.num_tokens
    right = last is None or (last.state, last.num_tokens) == (RequestState.DONE, num_delivered)
    if asked.last.whole and not right:
        yield f"billed wrong: {last}, {num_delivered} delivered"


def _was_hit(asked: Asked, records: Mapping[str, Record | None]) -> bool:
    record = records.get(asked.last.rid)
    return record is not None and record.num_attempts > 1
