"""An idle engine process waits for commands and for grammars; a failed attempt is refused."""

import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from shared.engine.scheduling.grammars import Grammars
from shared.grammar.source import json_schema
from shared.protocol import Attempt, Sampling
from shared.worker.channel import (
    CHANNEL_CODEC,
    Abort,
    Command,
    EngineChannel,
    Event,
    Refused,
    StepReport,
)
from shared.worker.engine_process import EngineLoop
from tests.support.models.structured_model import StructuredModel, spec_of, structured_model

WAIT_S = 20.0
NO_CITY = {
    "type": "object",
    "properties": {"city": {"allOf": [{"enum": ["x"]}, {"enum": ["y"]}]}},
    "required": ["city"],
}


@pytest.fixture
def ends() -> Iterator[tuple[EngineChannel, socket.socket]]:
    engine, io = socket.socketpair()
    with engine, io:
        yield EngineChannel(engine), io


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StructuredModel:
    torch.set_num_threads(1)
    return structured_model(tmp_path_factory.mktemp("structured"))


class RecordingChannel:
    """Keeps what the loop reports."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        self.events.append(event)

    def receive(self, limit_s: float | None = 0.0) -> list[Command]:
        assert limit_s == 0
        return []


def test_wake_ends_one_wait(ends: tuple[EngineChannel, socket.socket]) -> None:
    """From another thread, before the wait or during it; several are one."""
    channel, io = ends
    channel.wake()
    channel.wake()
    assert channel.receive(None) == []
    waker = threading.Timer(0.05, channel.wake)
    waker.start()
    assert channel.receive(None) == []
    waker.join(WAIT_S)
    assert channel.receive() == []
    body = CHANNEL_CODEC.encode(Abort(Attempt("r", 0)))
    io.sendall(len(body).to_bytes(4, "big") + body)
    channel.wake()
    assert channel.receive(None) == [Abort(Attempt("r", 0))]


def test_a_half_sent_command_does_not_swallow_a_wake(
    ends: tuple[EngineChannel, socket.socket],
) -> None:
    channel, io = ends
    body = CHANNEL_CODEC.encode(Abort(Attempt("r", 0)))
    frame = len(body).to_bytes(4, "big") + body
    io.sendall(frame[:7])
    channel.wake()
    assert channel.receive(None) == []
    io.sendall(frame[7:])
    assert channel.receive(None) == [Abort(Attempt("r", 0))]


@pytest.mark.parametrize(
    ("follows", "grammar", "problem", "reason"),
    [
        (False, 'start: "a"', "this worker cannot follow grammars", ""),
        (True, "start: nowhere", "unknown name", "grammar"),
        (True, json_schema(NO_CITY), "'city' is unsatisfiable", "grammar"),
    ],
)
def test_an_attempt_whose_grammar_fails_is_refused(
    model: StructuredModel, follows: bool, grammar: str, problem: str, reason: str
) -> None:
    """As the client's error, unless another worker may do better."""
    engine = model.engine() if follows else model.engine(grammars=Grammars(None))
    channel = RecordingChannel()
    loop = EngineLoop(engine, channel)
    ready = threading.Event()
    engine.grammars.on_ready = ready.set
    sampling = Sampling(max_tokens=5, grammar=grammar, eos_token_ids=model.eos_token_ids)
    engine.add(spec_of("r", (5, 6, 7), sampling))
    assert ready.wait(WAIT_S)
    loop.turn()
    refused, report = channel.events
    assert isinstance(refused, Refused) and refused.attempt == Attempt("r", 0)
    assert problem in refused.message and refused.reason == reason
    assert isinstance(report, StepReport) and not report.tokens
