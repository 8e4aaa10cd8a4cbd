"""The records of HTTP requests that have not ended: one each, however many choices the answer has.

ADMIT is written with the first choice, and its answer holds for all. FINISH is written once the
last choice is over and no other will come, with the worst of their ends and the sum of what they
used (R4). A choice that is not the last ends without Redis.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial

from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.records.record_writer import FINISH_WAIT_S, RecordWriter, Told
from shared.state.records import (
    Admission,
    AdmittedRequest,
    KeyTaken,
    Outcome,
    RequestState,
    pool_id,
)

_WORST_FIRST = (RequestState.FAILED, RequestState.CANCELLED, RequestState.DONE)
_REFUSED = Outcome(RequestState.FAILED, "state_unavailable", 0, 0, 0)
_NEVER_SUBMITTED = Outcome(RequestState.CANCELLED, "", 0, 0, 0)


class OpenRecord:
    """One HTTP request: which of its choices are over, and what they add up to."""

    def __init__(self, request: AdmittedRequest, num_choices: int) -> None:
        self.request = request
        self.unfinished: set[str] = set()
        """rids of the choices that are not over"""
        self.num_to_come = num_choices
        """choices that were not submitted yet"""
        self.waiting: list[Told] = []
        """to be told what ADMIT found"""
        self.answered = False
        self.admission: Admission | KeyTaken | None = None
        """what ADMIT found, once it was answered"""
        self.admitted_again = False
        """ADMIT, sent once more after a loss of data, was written"""
        self.finishing = False
        """FINISH was sent"""
        self.finished = asyncio.Event()
        """FINISH is written, or late"""
        self._ends: dict[tuple[int, int], Outcome] = {}
        """by prompt and choice, in the order of their ends"""
        self._cut_short = False

    @property
    def over(self) -> bool:
        return not self.unfinished and not self.num_to_come

    @property
    def refused(self) -> bool:
        """Redis said no: nothing was written, and nothing will be."""
        return self.answered and self.admission not in (None, Admission.ADMITTED)

    @property
    def num_ended_tokens(self) -> int:
        """Output tokens of the choices that are over."""
        return sum(end.num_output_tokens for end in self._ends.values())

    def note_end(self, request: GenerateRequest, end: Outcome) -> None:
        self.unfinished.discard(request.rid)
        self._ends[request.prompt, request.choice] = end

    def cut_short(self) -> None:
        """Choices that were not submitted yet never are."""
        self._cut_short |= self.num_to_come > 0
        self.num_to_come = 0

    def outcome(self) -> Outcome:
        """The worst end, with its code; output tokens of all choices; cached tokens of the first
        choice of each prompt; attempts of the choice that took most; what all of them owe."""
        ends = [*self._ends.values(), *[_NEVER_SUBMITTED] * self._cut_short]
        firsts = {place[0]: end for place, end in sorted(self._ends.items(), reverse=True)}
        worst = min(ends, key=lambda end: _WORST_FIRST.index(end.state))
        return Outcome(
            state=worst.state,
            code=worst.code,
            num_output_tokens=self.num_ended_tokens,
            num_cached_tokens=sum(end.num_cached_tokens for end in firsts.values()),
            num_attempts=max(end.num_attempts for end in ends),
            owed=sum(end.owed for end in ends),
            ttft_s=min((end.ttft_s for end in ends if end.ttft_s >= 0), default=-1.0),
        )


class OpenRecords:
    """By id of the HTTP request. All calls on the event loop."""

    def __init__(
        self, writer: RecordWriter, identity: GatewayIdentity, counters: DispatchCounters
    ) -> None:
        self.refuses_writes = False
        """Redis did, at the last ADMIT"""
        self._writer = writer
        self._identity = identity
        self._counters = counters
        self._open: dict[str, OpenRecord] = {}

    def join(self, request: GenerateRequest, told: Told) -> None:
        """A choice is submitted. `told` hears what ADMIT found; at once, if that is known."""
        record = self._open.get(request.http_rid) or self._admit(request)
        record.num_to_come -= 1
        record.unfinished.add(request.rid)
        if not record.answered:
            record.waiting.append(told)
            return
        if record.refused:
            self._refuse(record)
        told(record.admission)

    def leave(self, request: GenerateRequest, end: Outcome, recorded: Callable[[], None]) -> bool:
        """A choice is over. True if it was the last: `recorded` is called once FINISH is written
        or late. False: there is nothing to wait for."""
        record = self._open.get(request.http_rid)
        if record is None or request.rid not in record.unfinished:
            return False
        record.note_end(request, end)
        if not record.over:
            return False
        self._finish(record, recorded)
        return True

    async def close(self, rid: str) -> None:
        """No other choice of this HTTP request comes. Returns once its end is recorded, or late."""
        record = self._open.get(rid)
        if record is None:
            return
        self._cut_short(record)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_WAIT_S):
                await record.finished.wait()

    def close_all(self) -> None:
        """No choice of any request comes any more."""
        for record in list(self._open.values()):
            self._cut_short(record)

    @property
    def choices_to_come(self) -> bool:
        """A request was accepted, and some of its choices were not submitted yet."""
        return any(record.num_to_come for record in self._written().values())

    def admit_again(self) -> None:
        """Redis lost its data: write what is open once more."""
        for record in self._written().values():
            self._writer.admit(record.request, partial(self._admitted_again, record))

    def progress(self, num_tokens: Mapping[str, int]) -> dict[str, int]:
        """Output tokens so far, by record. `num_tokens`: those of live choices, by rid."""
        return {
            rid: record.num_ended_tokens
            + sum(num_tokens.get(choice, 0) for choice in record.unfinished)
            for rid, record in self._written().items()
        }

    def _written(self) -> dict[str, OpenRecord]:
        return {rid: record for rid, record in self._open.items() if not record.refused}

    def _admit(self, request: GenerateRequest) -> OpenRecord:
        group = request.group
        admitted = AdmittedRequest(
            rid=request.http_rid,
            gateway_incarnation=self._identity.gateway_incarnation,
            tenant=request.tenant,
            pool=pool_id(self._identity.pool),
            num_prompt_tokens=group.num_prompt_tokens if group else len(request.prompt_ids),
            received_ns=request.received_ns,
            client_key=request.client_key,
            backlog=self._identity.pool,
            priority=request.priority,
        )
        record = OpenRecord(admitted, group.num_choices if group else 1)
        self._open[admitted.rid] = record
        self._writer.admit(admitted, partial(self._answered, record), request.max_live)
        return record

    def _answered(self, record: OpenRecord, answer: Admission | KeyTaken | None) -> None:
        self.refuses_writes = answer is Admission.REFUSES_WRITES
        if answer is not Admission.ADMITTED:
            self._counters.admissions_refused[_reason(answer)] += 1
        record.answered, record.admission = True, answer
        waiting, record.waiting = record.waiting, []
        if record.refused:
            self._refuse(record)
        for told in waiting:
            told(answer)

    def _admitted_again(self, record: OpenRecord, answer: Admission | KeyTaken | None) -> None:
        """Its end may have come before: FINISH, lost since, or the refusal of the first ADMIT. The
        record would live until we end."""
        record.admitted_again |= answer is Admission.ADMITTED
        if record.finishing:
            self._writer.finish(record.request, record.outcome(), lambda: None)
        elif record.refused:
            self._undo(record)

    def _undo(self, record: OpenRecord) -> None:
        """What was refused and sent again may have been written."""
        if record.admitted_again:
            self._writer.finish(record.request, _REFUSED, lambda: None)

    def _refuse(self, record: OpenRecord) -> None:
        """Its choices end as they hear of it; those to come hear it at once."""
        self._undo(record)
        record.unfinished.clear()
        if record.over:
            self._forget(record)

    def _cut_short(self, record: OpenRecord) -> None:
        record.cut_short()
        if record.refused:
            self._forget(record)
        elif record.over and not record.finishing:
            self._finish(record, lambda: None)

    def _finish(self, record: OpenRecord, recorded: Callable[[], None]) -> None:
        record.finishing = True
        self._writer.finish(
            record.request, record.outcome(), partial(self._finished, record, recorded)
        )

    def _finished(self, record: OpenRecord, recorded: Callable[[], None]) -> None:
        self._forget(record)
        recorded()

    def _forget(self, record: OpenRecord) -> None:
        record.finished.set()
        self._open.pop(record.request.rid, None)


def _reason(answer: Admission | KeyTaken | None) -> str:
    """Why it was not admitted, as it is counted."""
    if isinstance(answer, KeyTaken):
        return "key_taken"
    return "away" if answer is None else answer.value
