"""A small world around one request: two prefill and two decode workers, a network that loses,
repeats and reorders, a client, Redis. It does what a `RequestMachine` asks and watches what comes
out.

Every token id is unique and stands for its lineage: attempt, prefill run, decode run, index. So
a stream that mixes attempts is seen at the first wrong token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from services.gateway.owner.machine.effects import (
    CONVICTED_CODE,
    ChooseDecode,
    Deliver,
    Effect,
    End,
    Failure,
    Move,
    Requeue,
    SendAssign,
    SendCancel,
    SendReceive,
    WriteFinish,
)
from services.gateway.owner.machine.request_machine import RequestMachine
from services.gateway.owner.machine.time_limits import time_is_up
from shared.protocol import FinishReason, Sampling, TokenRun
from tests.unit.gateway.owner.machine.deaths import Deaths

MAX_TOKENS = 4
MAX_STRIKES = 4


@dataclass(frozen=True)
class Lineage:
    """Where a token comes from. `decode_incarnation` is None for what prefill sampled."""

    epoch: int
    index: int
    start: int
    prefill_incarnation: str
    decode_incarnation: str | None


@dataclass(frozen=True)
class Wire:
    """A message on its way to the gateway."""

    kind: str
    epoch: int
    incarnation: str
    run: TokenRun | None = None


class World:
    """Runs one `RequestMachine`; AssertionError the moment an invariant breaks."""

    def __init__(self, machine: RequestMachine) -> None:
        self.machine = machine
        self.net: list[Wire] = []
        self.incs = ["p0.0", "p1.0", "d0.0", "d1.0"]
        self.lossless = True
        """every message so far was or will be delivered, and no worker was lost"""
        self.admitted: bool | None = None
        self.delivered: list[int] = []
        self.lineages: dict[int, Lineage] = {}
        self.starts: dict[int, int] = {}
        self.assigned: dict[int, str] = {}
        self.alone: dict[int, bool] = {}
        """by epoch: it was computed in steps of its own"""
        self.num_alone_deaths = 0
        """of engines, in such a step"""
        self.crashed: set[str] = set()
        """incarnations whose engine has died"""
        self.receivers: dict[int, str] = {}
        self.deaths = Deaths()
        self.dying: set[str] = set()
        """dead, and their link is not closed yet"""
        self.finish: WriteFinish | None = None
        self.end: End | None = None
        self.text_stopped = False
        self.in_order = True

    # What may happen

    def event(self, effects: list[Effect]) -> None:
        """Carry out what an event led to, and what that leads to."""
        todo = list(effects)
        while todo:
            todo += self._perform(todo.pop(0))
        self.deaths.note_progress(len(self.machine.token_ids))
        num_strikes, deaths = len(self.machine.strikes), self.deaths
        assert num_strikes <= MAX_STRIKES, "I10 strikes"
        assert num_strikes <= deaths.num_possible, "I10 a strike without a death of its own"
        assert self.num_alone_deaths < 2 or not self.machine.active, "a convict goes on"
        assert not self.machine.active or deaths.num_certain < MAX_STRIKES, "I10 it goes on and on"

    def place(self, incarnation: str) -> None:
        if self.machine.waits:
            mode: Any = "prefill" if incarnation.startswith("p") else "local"
            self.event(self.machine.assign(incarnation, mode))

    def move(self) -> None:
        """The worker that decodes drains."""
        self.event(self.machine.move())

    def release(self) -> None:
        """Prefill says that decode has taken all there is."""
        machine = self.machine
        if machine.epoch in self.receivers:
            machine.released(machine.epoch, self.assigned[machine.epoch])

    def choose_decode(self, incarnation: str) -> None:
        self.event(self.machine.choose_decode(self.machine.epoch, incarnation))

    def deliver(self, at: int, *, again: bool = False) -> None:
        """The network hands over message `at`; `again`: and keeps a copy for later."""
        wire = self.net[at] if again else self.net.pop(at)
        machine = self.machine
        if wire.kind == "start":
            self.event(machine.start(wire.epoch, wire.incarnation))
        elif wire.kind == "tokens":
            assert wire.run is not None
            self.event(machine.tokens(wire.incarnation, wire.run))
        elif wire.kind == "refuse":
            self.event(machine.refuse(wire.epoch, wire.incarnation, "no_room"))
        elif wire.kind == "handback":
            self.event(machine.handback(wire.epoch, wire.incarnation, "pressure"))
        else:
            self._fail(wire)

    def _fail(self, wire: Wire) -> None:
        machine = self.machine
        if wire.kind == "crash":
            alone = self.alone.get(wire.epoch, False)
            if machine.active and wire.incarnation not in self.crashed:
                self.crashed.add(wire.incarnation)
                self.num_alone_deaths += alone
            effects = machine.crash(wire.epoch, wire.incarnation, alone=alone)
            self.event(effects)
            return
        if wire.epoch == machine.epoch:
            self.deaths.note(wire.incarnation, num_tokens=len(machine.token_ids))
        self.event(machine.fail(wire.epoch, wire.incarnation, "broken"))

    def drop(self, at: int) -> None:
        self.lossless = False
        del self.net[at]

    def say(self, kind: str, incarnation: str) -> None:
        """A worker gives the current attempt up; what it sent before is still on its way."""
        self.lossless = False
        self.net.append(Wire(kind, self.machine.epoch, incarnation))

    def restart(self, at: int) -> None:
        """A worker dies and comes back as another incarnation; its messages may still arrive."""
        self.lossless = False
        name, _, nonce = self.incs[at].partition(".")
        lost, self.incs[at] = self.incs[at], f"{name}.{int(nonce) + 1}"
        if self.machine.holds(lost):
            self._note_death(lost, certain=True)
        self.event(self.machine.lose_link(lost))

    def lose_source(self) -> None:
        """Prefill dies, and decode says so before the gateway sees prefill's link close."""
        machine = self.machine
        p_inc, d_inc = machine.prefill_incarnation, machine.decode_incarnation
        if p_inc is None or d_inc in (None, p_inc) or not machine.holds(p_inc):
            return
        self.lossless = False
        self._note_death(p_inc)
        self.dying.add(p_inc)
        assert d_inc is not None
        self.event(machine.fail(machine.epoch, d_inc, "source_lost"))

    def flap(self, at: int) -> None:
        """A link breaks, and the same incarnation is back."""
        inc = self.incs[at]
        if self.machine.holds(inc):
            self.lossless = False
            with self.deaths.one_more(len(self.machine.token_ids)):
                self.event(self.machine.lose_link(inc))
            self.machine.excuse(inc)
            self.event([])

    def leave(self, at: int) -> None:
        """A worker goes as announced."""
        self.lossless = False
        self.event(self.machine.lose_link(self.incs[at], excused=True))

    def stall(self) -> None:
        self.lossless = False
        for inc in (self.machine.prefill_incarnation, self.machine.decode_incarnation):
            if inc is not None:
                self._note_death(inc)
        self.event(self.machine.stall(self.machine.epoch))

    def answer_admit(self, accepted: bool, maybe_recorded: bool = False) -> None:
        if self.admitted is None:
            self.admitted = accepted
            refusal = Failure("over_quota", "no", 429, 1.0)
            self.event(
                self.machine.admitted()
                if accepted
                else self.machine.refused(refusal, maybe_recorded=maybe_recorded)
            )

    def answer_finish(self) -> None:
        self.event(self.machine.finish_answered())

    def stop(self) -> None:
        self.text_stopped = self.text_stopped or self.machine.active
        self.event(self.machine.stop("stop", len(self.delivered)))

    def cancel(self) -> None:
        self.event(self.machine.cancel(len(self.delivered)))

    def expire(self) -> None:
        self.event(self.machine.abandon(time_is_up(1.0)))

    def settle(self) -> None:
        """No more faults: all that is on its way arrives, in order or backwards, and Redis
        answers. The request must end, without any timeout if nothing was lost."""
        for _ in range(200):
            if self.end is not None:
                break
            self.answer_admit(True)
            self.answer_finish()
            self.place(self.incs[0])
            for inc in self.incs[2:]:
                self.choose_decode(inc)
            if self.net:
                self.deliver(0 if self.in_order else len(self.net) - 1)
            elif not self.lossless:
                self.stall()
        assert self.end is not None, "I8 the request never ends"
        while self.net:
            self.deliver(0)

    # What comes out

    def _note_death(self, incarnation: str, *, certain: bool = False) -> None:
        num_tokens = len(self.machine.token_ids)
        if incarnation in self.dying:
            self.deaths.note_again(incarnation, num_tokens)
        else:
            self.deaths.note(incarnation, num_tokens=num_tokens, certain=certain)

    def _perform(self, effect: Effect) -> list[Effect]:
        if isinstance(effect, SendAssign):
            self._assign(effect)
        elif isinstance(effect, SendReceive):
            self._receive(effect)
        elif isinstance(effect, Deliver):
            self._take(effect)
        elif isinstance(effect, WriteFinish):
            assert self.finish is None, "I1 outcome and usage written twice"
            assert self.admitted is not None, "FINISH before ADMIT's answer"
            self.finish = effect
        elif isinstance(effect, End):
            self._close(effect)
        elif isinstance(effect, Move):
            return self.machine.assign(effect.source, "prefill")
        else:
            assert isinstance(effect, SendCancel | Requeue | ChooseDecode)
        return []

    def _assign(self, effect: SendAssign) -> None:
        epoch, inc = effect.epoch, effect.incarnation
        assert epoch == len(self.assigned), "R2 an epoch was assigned twice or left out"
        self.assigned[epoch] = inc
        self.alone[epoch] = self.machine.strikes.crashes.suspected
        start = self.starts[epoch] = len(self.machine.token_ids)
        assert start < MAX_TOKENS, "a retry of a request that has all its tokens"
        self.net.append(Wire("start", epoch, inc))
        decoder = inc if effect.mode == "local" else None
        count = MAX_TOKENS - start if decoder else 1
        tokens = [self._token(epoch, start + k, inc, decoder) for k in range(count)]
        self._send_runs(epoch, inc, start, tokens)

    def _receive(self, effect: SendReceive) -> None:
        epoch, inc = effect.epoch, effect.decode_incarnation
        assert epoch not in self.receivers, "R2 two decode workers in one epoch"
        assert effect.prefill_incarnation == self.assigned[epoch]
        assert effect.prefill_incarnation != inc, "a worker pulls from itself"
        self.receivers[epoch] = inc
        start = self.starts[epoch]
        first = self._token(epoch, start, effect.prefill_incarnation, None)
        rest = range(start + 1, MAX_TOKENS)
        tokens = [first, *(self._token(epoch, k, effect.prefill_incarnation, inc) for k in rest)]
        self._send_runs(epoch, inc, start, tokens)

    def _send_runs(self, epoch: int, incarnation: str, start: int, tokens: list[int]) -> None:
        """One frame a token; the last tokens share one, as after a slow step."""
        cuts = [[token] for token in tokens[:2]] + ([tokens[2:]] if len(tokens) > 2 else [])
        at = start
        for cut in cuts:
            ends = at + len(cut) == MAX_TOKENS
            reason: FinishReason | None = "length" if ends else None
            run = TokenRun("r", epoch, at, tuple(cut), (), reason)
            self.net.append(Wire("tokens", epoch, incarnation, run))
            at += len(cut)

    def _token(
        self, epoch: int, index: int, prefill_incarnation: str, decode_incarnation: str | None
    ) -> int:
        lineage = Lineage(epoch, index, self.starts[epoch], prefill_incarnation, decode_incarnation)
        for token, known in self.lineages.items():
            if known == lineage:
                return token
        token = len(self.lineages)
        self.lineages[token] = lineage
        return token

    def _take(self, effect: Deliver) -> None:
        assert self.admitted, "a token reached the client before ADMIT's answer"
        assert self.end is None, "a token after the end"
        assert effect.index == len(self.delivered), "I3 duplicate or missing index"
        self.delivered += effect.token_ids
        check_lineage([self.lineages[token] for token in self.delivered])

    def _close(self, end: End) -> None:
        assert self.end is None, "two terminals"
        if end.last is not None:
            self._take(end.last)
        self.end = end
        if end.failure is not None and end.failure.code == CONVICTED_CODE:
            assert self.num_alone_deaths == 2, "convicted of what others did"
        if end.outcome == "done":
            assert self.finish is not None, "I5 told DONE, never recorded"
            complete = len(self.delivered) == MAX_TOKENS and end.finish_reason == "length"
            assert complete or self.text_stopped, "DONE with tokens missing"
        if self.finish is not None:
            assert self.finish.outcome == end.outcome, "I6 record and client disagree"
            assert self.finish.num_tokens <= len(self.delivered), "billed above delivered"


def check_lineage(stream: Iterable[Lineage]) -> None:
    """I3, I4: indexes 0, 1, 2, and each token continues exactly the tokens before it."""
    seen: list[Lineage] = []
    for item in stream:
        assert item.index == len(seen), "I3 duplicate or missing index"
        for before in seen[item.start :]:
            assert before.epoch == item.epoch, "I4 attempts mixed"
            assert before.prefill_incarnation == item.prefill_incarnation, (
                "I4p two prefill runs mixed"
            )
            assert (
                None in (before.decode_incarnation, item.decode_incarnation)
                or before.decode_incarnation == item.decode_incarnation
            ), "I4d"
        seen.append(item)


def sampling() -> Sampling:
    return Sampling(max_tokens=MAX_TOKENS, temperature=0.0)
