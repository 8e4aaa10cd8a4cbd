"""Sends frames about attempts to the gateways that own them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from shared.link.server import Peer
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.message_parts.span import Span
from shared.protocol import (
    Attempt,
    Fail,
    Handback,
    Pong,
    Refusal,
    Refuse,
    Scored,
    Spans,
    Start,
    TokenRun,
    Tokens,
)
from shared.telemetry import attributes as names
from shared.telemetry.tracing import SpanSink, parse_traceparent
from shared.worker.attempts.progress import advanced_attempts
from shared.worker.attempts.table import HeldAttempt
from shared.worker.state import WorkerState


class Outbox:
    """Says things to gateways; every frame carries this incarnation and the load."""

    def __init__(self, state: WorkerState, sink: SpanSink) -> None:
        self._state = state
        self._sink = sink

    def refuse(self, peer: Peer, attempt: Attempt, reason: Refusal, text: str = "") -> None:
        self._state.count(f"refusals:{reason}")
        peer.send(Refuse(attempt, self._state.incarnation, reason, text))

    def started(self, attempts: Sequence[HeldAttempt]) -> None:
        """The first chunk of each is scheduled."""
        if not attempts:
            return
        inc, load = self._state.incarnation, self._state.load()
        for held in attempts:
            held.peer.send(Start(held.attempt, inc, held.num_cached_tokens, load))

    def scored(self, told: Iterable[tuple[Attempt, PromptLogprobs]]) -> None:
        """A frame for each piece. To be called before the tokens of the same step are sent."""
        for attempt, values in told:
            if (held := self._state.attempts.get(attempt)) is not None:
                held.peer.send(Scored(attempt, self._state.incarnation, values))

    def tokens(self, runs: Iterable[tuple[HeldAttempt, TokenRun]]) -> None:
        """One frame per gateway with all of this step's tokens."""
        by_peer: dict[Peer, list[TokenRun]] = defaultdict(list)
        for held, run in runs:
            by_peer[held.peer].append(run)
        load = self._state.load()
        for peer, peer_runs in by_peer.items():
            peer.send(Tokens(self._state.incarnation, tuple(peer_runs), load))

    def note_stages(self, held: HeldAttempt, *spans: Span) -> None:
        """To the gateway only, for its receipt: a stage that still goes on."""
        held.peer.send(Spans(held.attempt, self._state.incarnation, spans))

    def stages(self, held: HeldAttempt, *spans: Span) -> None:
        """To the gateway for its receipt, and to the trace's collector."""
        attempt = held.attempt
        self.note_stages(held, *spans)
        parent = parse_traceparent(held.traceparent)
        if parent is None:
            return
        for span in spans:
            span.attributes.update({names.REQUEST_ID: attempt.rid, names.EPOCH: attempt.epoch})
            self._sink.emit(span, parent)

    def fail(self, held: HeldAttempt, code: str, message: str) -> None:
        self._state.count("failed_attempts")
        held.peer.send(Fail(held.attempt, self._state.incarnation, code, message))

    def crash(self, held: HeldAttempt, message: str, *, alone: bool) -> None:
        """The engine died by itself while it computed this, `alone` or with others."""
        self._state.count("failed_attempts")
        inc = self._state.incarnation
        held.peer.send(Fail(held.attempt, inc, "engine_died", message, own_fault=True, alone=alone))

    def hand_back(self, held: HeldAttempt, reason: str) -> None:
        self._state.count("handed_back")
        held.peer.send(Handback(held.attempt, self._state.incarnation, reason))

    def pong(self, peer: Peer, seq: int) -> None:
        state = self._state
        stages, advanced = state.attempts.num_by_stage(), advanced_attempts(state, peer)
        peer.send(Pong(seq, state.load(), state.counters, stages, advanced, state.gauges))
