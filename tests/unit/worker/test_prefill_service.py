"""An attempt's life on a prefill worker: which frames and engine calls follow, in which order."""

import pytest

from services.prefill.service import PrefillService
from shared.errors import ProtocolError
from shared.kv.memory import Piece
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.protocol import (
    Attempt,
    Cancel,
    Fail,
    Message,
    Ping,
    Pong,
    Refuse,
    Scored,
    Spans,
    Start,
    Tokens,
)
from shared.worker.channel import Abort, Add, Announced, Refused, Release, Scheduled
from shared.worker.inbox import Inbox
from tests.unit.worker.fake_parts import (
    INC,
    FakePeer,
    Stage,
    make_assign,
    make_receive,
    make_report,
    make_run,
)

A0, A1 = Attempt("r", 0), Attempt("r", 1)
PIECE = Piece(0, (3,), (1,))


class Prefill(Stage):
    """A service with its stand-ins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.service = PrefillService(
            self.state, self.outbox, self.engine, self.transport, self.clock
        )
        self.inbox = Inbox(self.state, self.outbox, self.service, self.clock)

    def assign(self, **fields: object) -> None:
        self.inbox.on_message(self.peer, make_assign(**fields))  # type: ignore[arg-type]

    def started(self, attempt: Attempt = A0) -> None:
        self.assign(rid=attempt.rid, epoch=attempt.epoch)
        self.inbox.on_event(Scheduled(10, started=((attempt, 2),)))

    def announced(self, piece: Piece = PIECE) -> None:
        self.inbox.on_event(Scheduled(20, announced=(Announced(A0, piece, 7),)))

    def sealed(self) -> None:
        self.started()
        self.announced()
        run = make_run(0, 42)
        report = make_report(
            end_ns=30,
            chunks=((A0, 3),),
            tokens=(run,),
            sealed=((A0, run),),
        )
        self.inbox.on_event(report)


@pytest.fixture
def prefill() -> Prefill:
    return Prefill()


def test_assign_opens_an_offer_and_queues_the_prompt(prefill: Prefill) -> None:
    prefill.assign()
    offered, (_, command) = prefill.journal.take()
    assert offered == ("transport", ("offer", A0, "secret"))
    assert isinstance(command, Add)
    assert (command.spec.work.attempt, command.spec.mode) == (A0, "prefill")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"incarnation": "worker.0"}, "incarnation"), ({"rid": "s", "num_tokens": 11}, "no_room")],
)
def test_a_refused_prompt_leaves_nothing_behind(
    prefill: Prefill, fields: dict[str, object], reason: str
) -> None:
    prefill.assign(num_tokens=20)
    prefill.journal.take()
    prefill.assign(**fields)
    [(_, frame)] = prefill.journal.take()
    assert isinstance(frame, Refuse)
    assert (frame.incarnation, frame.reason) == (INC, reason)
    assert len(prefill.state.attempts) == 1


def test_a_draining_worker_refuses(prefill: Prefill) -> None:
    prefill.state.leaving = True
    prefill.assign()
    assert [frame.reason for frame in prefill.frames()] == ["draining"]


def test_a_duplicate_and_a_lower_epoch_are_ignored(prefill: Prefill) -> None:
    prefill.assign(epoch=1)
    prefill.journal.take()
    prefill.assign(epoch=1)
    prefill.assign(epoch=0)
    assert prefill.journal.take() == []


def test_a_higher_epoch_replaces_a_lower_one(prefill: Prefill) -> None:
    prefill.started()
    prefill.journal.take()
    prefill.assign(epoch=1)
    entries = prefill.journal.take()
    assert entries[:2] == [("offer", "withdraw"), ("engine", Abort(A0))]
    assert entries[2] == ("transport", ("offer", A1, "secret"))
    assert [held.attempt for held in prefill.state.attempts] == [A1]


def test_start_is_sent_when_the_first_chunk_is_scheduled(prefill: Prefill) -> None:
    prefill.started()
    [frame] = prefill.frames()
    assert isinstance(frame, Start)
    assert (frame.attempt, frame.incarnation, frame.num_cached_tokens) == (A0, INC, 2)
    assert (frame.load.room_tokens, frame.load.queued_tokens) == (20, 3)


def test_token_1_leaves_before_the_seal(prefill: Prefill) -> None:
    prefill.sealed()
    entries = prefill.journal.take()
    kinds = [type(what).__name__ if who == "gateway" else what for who, what in entries[2:]]
    assert kinds == ["Start", ("publish", 0, 7), "Tokens", ("seal", (42,)), "Spans"]
    assert prefill.state.attempts.num_uncomputed_tokens == 0


def test_log_probabilities_of_the_prompt_leave_before_token_1(prefill: Prefill) -> None:
    prefill.started()
    prefill.journal.take()
    pieces = [PromptLogprobs(first, bytes(8), bytes(8), b"", b"") for first in (1, 3)]
    unheld = Attempt("gone", 0)
    scored = ((A0, pieces[0]), (unheld, pieces[0]), (A0, pieces[1]))
    prefill.inbox.on_event(make_report(end_ns=30, scored=scored, tokens=(make_run(0, 42),)))
    *told, tokens = [frame for frame in prefill.frames() if not isinstance(frame, Spans)]
    assert told == [Scored(A0, INC, piece) for piece in pieces]
    assert isinstance(tokens, Tokens)


def test_one_frame_carries_all_tokens_of_a_step_for_a_gateway(prefill: Prefill) -> None:
    other = FakePeer(prefill.journal, "other")
    for rid in ("a", "b"):
        prefill.started(Attempt(rid, 0))
    prefill.inbox.on_message(other, make_assign("c"))
    prefill.journal.take()
    runs = tuple(make_run(0, 1, rid=rid) for rid in ("a", "b", "c", "gone"))
    prefill.inbox.on_event(make_report(tokens=runs))
    tokens = [(who, what) for who, what in prefill.journal.take() if isinstance(what, Tokens)]
    assert [(who, frame.runs) for who, frame in tokens] == [
        ("gateway", runs[:2]),
        ("other", runs[2:3]),
    ]


def test_pieces_are_published_chunk_by_chunk(prefill: Prefill) -> None:
    prefill.started()
    prefill.journal.take()
    for first in (0, 1):
        prefill.announced(Piece(first, (first,), (1,)))
        prefill.inbox.on_event(make_report(chunks=((A0, 1),)))
    assert prefill.journal.take("offer") == [("publish", 0, 7), ("publish", 1, 7)]


def test_end_instead_of_seal_when_token_1_was_the_last(prefill: Prefill) -> None:
    prefill.started()
    prefill.journal.take()
    run = make_run(0, 42, finish_reason="length")
    prefill.announced()
    prefill.inbox.on_event(make_report(tokens=(run,), ended=(A0,)))
    assert prefill.journal.take("offer") == [("publish", 0, 7), "end"]
    assert len(prefill.state.attempts) == 0
    prefill.inbox.on_message(prefill.peer, Cancel(A0))
    assert prefill.journal.take() == []


def test_released_blocks_go_back_once(prefill: Prefill) -> None:
    prefill.sealed()
    prefill.journal.take()
    prefill.transport.on_release(A0)
    prefill.transport.on_release(A0)
    prefill.inbox.on_message(prefill.peer, Cancel(A0))
    [(_, release), (_, told)] = prefill.journal.take()
    assert release == Release(A0)
    [span] = told.spans
    assert (span.name, span.start_ns, [event.name for event in span.events]) == (
        "kv_held",
        30,
        ["released"],
    )
    assert len(prefill.state.attempts) == 0


@pytest.mark.parametrize("reach", ["assign", "started", "sealed"])
def test_cancel_refuses_reads_before_the_blocks_are_free(prefill: Prefill, reach: str) -> None:
    getattr(prefill, reach)()
    prefill.journal.take()
    for _ in range(2):
        prefill.inbox.on_message(prefill.peer, Cancel(A0))
    assert prefill.journal.take() == [("offer", "withdraw"), ("engine", Abort(A0))]
    prefill.transport.on_release(A0)
    prefill.inbox.on_event(Scheduled(10, started=((A0, 0),), announced=(Announced(A0, PIECE, 7),)))
    late = make_report(
        chunks=((A0, 3),),
        tokens=(make_run(0, 42),),
        sealed=((A0, make_run(0, 42)),),
    )
    prefill.inbox.on_event(late)
    assert prefill.journal.take() == []


def test_cancel_of_another_epoch_changes_nothing(prefill: Prefill) -> None:
    prefill.assign(epoch=1)
    prefill.journal.take()
    prefill.inbox.on_message(prefill.peer, Cancel(A0))
    assert prefill.journal.take() == [] and len(prefill.state.attempts) == 1


def test_a_lost_gateway_takes_only_its_own_attempts_along(prefill: Prefill) -> None:
    other = FakePeer(prefill.journal, "other")
    prefill.assign()
    prefill.inbox.on_message(other, make_assign("s"))
    prefill.journal.take()
    prefill.inbox.on_gateway_lost(prefill.peer)
    assert prefill.journal.take() == [("offer", "withdraw"), ("engine", Abort(A0))]
    assert [held.attempt.rid for held in prefill.state.attempts] == ["s"]


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (Refused(A0, "never fits"), Fail(A0, INC, "refused", "never fits")),
        (Refused(A0, "never fits", "too_long"), Refuse(A0, INC, "too_long", "never fits")),
        (Refused(A0, "no output", "grammar"), Refuse(A0, INC, "grammar", "no output")),
    ],
)
def test_what_the_engine_cannot_take_is_told(
    prefill: Prefill, refused: Refused, told: Message
) -> None:
    """Whether another worker could take it is the engine's word."""
    prefill.assign()
    prefill.journal.take()
    prefill.inbox.on_event(refused)
    *rest, (_, frame) = prefill.journal.take()
    assert frame == told
    assert rest == [("offer", "withdraw"), ("engine", Abort(A0))]


def test_spans_cut_the_time_into_queue_and_prefill(prefill: Prefill) -> None:
    prefill.clock.advance(5e-9)
    prefill.sealed()
    spans = prefill.spans()
    assert spans["queue"][:2] == (5, 10)
    start_ns, end_ns, attributes = spans["prefill"]
    assert (start_ns, end_ns) == (10, 30)
    told = [attributes[f"baton.prefill.{name}"] for name in ("chunks", "tokens", "cached_tokens")]
    assert sorted(told) == [1, 2, 3]


def test_ping_is_answered_with_load_and_counters(prefill: Prefill) -> None:
    prefill.inbox.on_event(make_report(counters={"engine_steps": 3}))
    prefill.inbox.on_message(prefill.peer, Ping(7))
    assert prefill.frames() == [Pong(7, prefill.state.load(), {"engine_steps": 3})]


def test_start_is_told_once(prefill: Prefill) -> None:
    """Also if the prompt is scheduled again, after it gave way to others."""
    prefill.started()
    prefill.inbox.on_event(Scheduled(20, started=((A0, 2),)))
    assert [type(frame) for frame in prefill.frames()] == [Start]
    assert prefill.state.attempts.num_uncomputed_tokens == 3


def test_other_frames_break_the_protocol(prefill: Prefill) -> None:
    for message in (make_receive(), make_assign(mode="local", reason="agg")):
        with pytest.raises(ProtocolError):
            prefill.inbox.on_message(prefill.peer, message)
