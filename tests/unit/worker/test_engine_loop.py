"""The step loop: commands between steps, one report a step, early word of what was scheduled."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from shared.engine.engine import Engine
from shared.engine.running import launch_time
from shared.engine.running.step_clock import StepClock
from shared.engine.sampling.sampled_tokens import HostTokens
from shared.kv.memory import KVMemory, first_token_word
from shared.mover import first_tokens
from shared.mover.first_tokens import FirstTokens
from shared.planted_faults.faulty_engine import FaultyEngine
from shared.protocol import Attempt, Sampling, TokenRun
from shared.worker.channel import (
    Abort,
    Add,
    Adopt,
    Beat,
    Command,
    Event,
    Nearing,
    Refused,
    Release,
    Reserve,
    Scheduled,
    StepReport,
)
from shared.worker.engine_process import EngineLoop
from tests.support.pairs.worker_pair import StepChannel
from tests.unit.engine.fake_runner import LAYOUT, answer_alone, fake_engine, make_prompt, make_spec

GREEDY = Sampling(max_tokens=6, temperature=0.0)


class Loop:
    """An engine, its loop and io's end of the channel."""

    def __init__(
        self, role: str, num_blocks: int = 8, planted_faults: str = "", *, runs_ahead: bool = False
    ) -> None:
        self.engine: Engine
        self.engine, self.runner = fake_engine(
            num_blocks, role=role, max_model_len=33, runs_ahead=runs_ahead
        )
        self.channel = StepChannel(asyncio.Event())
        stepped = FaultyEngine(self.engine, planted_faults) if planted_faults else self.engine
        self.memory = KVMemory.create(LAYOUT, num_blocks)
        """of a prefill worker on this host"""
        self.first_tokens = FirstTokens(lambda: None)
        self.first_tokens.map("p", num_blocks, self.memory.read_only())
        self.loop = EngineLoop(stepped, self.channel, self.first_tokens)

    def turn(self, *commands: Command) -> list[Event]:
        """What one turn with these commands reports."""
        for command in commands:
            self.channel.put(command)
        self.loop.turn()
        events = list(self.channel.events)
        self.channel.events.clear()
        return events


def report_of(events: list[Event]) -> StepReport:
    assert isinstance(events[-1], StepReport)
    return events[-1]


def test_an_idle_engine_answers_a_beat() -> None:
    (report,) = Loop("decode").turn(Beat())
    assert isinstance(report, StepReport) and report.tokens == ()


@pytest.mark.parametrize("planted_faults", ["", "decode=1"])
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_an_idle_engine_goes_on_from_a_token_that_is_told(
    planted_faults: str, monkeypatch: pytest.MonkeyPatch, *, runs_ahead: bool
) -> None:
    monkeypatch.setattr(first_tokens, "PATIENCE_S", 60.0)
    loop = Loop("decode", planted_faults=planted_faults, runs_ahead=runs_ahead)
    attempt = Attempt("a", 0)
    prompt = make_prompt(9)
    answer = answer_alone(prompt, 9, GREEDY, 33)
    [scheduled, _] = loop.turn(Reserve(make_spec("a", prompt, GREEDY, "decode")))
    assert isinstance(scheduled, Scheduled)
    blocks = scheduled.reserved[0].block_ids
    for position, token_id in enumerate(prompt):
        loop.runner.kv[blocks[position // 4], position % 4] = token_id, position
    loop.first_tokens.expect(attempt, "p", 3, 1)
    told = threading.Timer(
        0.005, loop.memory.first_tokens.__setitem__, (3, first_token_word(1, answer[0]))
    )
    told.start()
    assert report_of(loop.turn()).tokens == (), "the turn lasts until it is told"
    assert loop.engine.counters.early_starts == 1 and loop.engine.counters.steps == 1
    events = loop.turn(Adopt(attempt, TokenRun("a", 0, 0, (answer[0],))))
    while loop.engine.has_work:
        events += loop.turn()
    runs = [run for event in events if isinstance(event, StepReport) for run in event.tokens]
    assert [token_id for run in runs for token_id in run.token_ids] == answer
    assert loop.engine.load().held == 0


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_the_start_of_a_step_is_exercised_while_its_token_is_near(
    monkeypatch: pytest.MonkeyPatch, *, runs_ahead: bool
) -> None:
    monkeypatch.setattr(launch_time, "EXERCISED_S", 0.5)
    loop = Loop("decode", runs_ahead=runs_ahead)
    attempt = Attempt("a", 0)
    loop.turn(Reserve(make_spec("a", make_prompt(9), GREEDY, "decode")))
    loop.turn()
    assert loop.runner.num_exercises == 0, "it is not near"
    start_s = time.monotonic()
    loop.turn(Nearing(attempt))
    loop.turn()  # no command comes: until it is exercised no more
    if not runs_ahead:
        assert loop.runner.num_exercises == 0, "a start that waits for its step"
        return
    waited_s = time.monotonic() - start_s
    assert waited_s >= launch_time.EXERCISED_S
    assert 2 <= loop.runner.num_exercises <= 1 + waited_s / launch_time.EXERCISE_EVERY_S
    loop.runner.num_exercises = 0
    loop.turn(Nearing(attempt))
    loop.turn(Abort(attempt))
    loop.turn()
    assert loop.runner.num_exercises == 0, "it does not come any more"


def test_a_command_ends_the_wait_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_tokens, "PATIENCE_S", 60.0)
    loop = Loop("decode")
    loop.turn(Reserve(make_spec("a", make_prompt(9), GREEDY, "decode")))
    loop.first_tokens.expect(Attempt("a", 0), "p", 3, 1)
    report_of(loop.turn(Beat()))
    assert loop.first_tokens.any_expected
    assert loop.engine.load().held == 3
    loop.turn(Abort(Attempt("a", 0)))
    assert loop.engine.load().held == 0


def test_a_token_that_the_engine_does_not_begin_with_is_declined() -> None:
    loop = Loop("decode")
    loop.memory.first_tokens[3] = first_token_word(1, 7)
    loop.first_tokens.expect(Attempt("a", 0), "p", 3, 1)
    loop.turn(Beat())
    loop.first_tokens.give_up(Attempt("a", 0))


def test_a_token_that_is_told_for_a_sequence_that_is_gone_changes_nothing() -> None:
    loop = Loop("decode")
    loop.memory.first_tokens[3] = first_token_word(1, 7)
    loop.first_tokens.expect(Attempt("a", 0), "p", 3, 1)
    loop.turn(Beat())
    assert not loop.first_tokens.any_expected
    assert loop.engine.counters.early_starts == 0


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_what_runs_alone_is_told_while_it_does(*, runs_ahead: bool) -> None:
    loop = Loop("decode", runs_ahead=runs_ahead)
    spec = make_spec("a", make_prompt(5), GREEDY)
    alone = replace(spec, work=replace(spec.work, alone=True))
    other = make_spec("b", make_prompt(5, salt=1), GREEDY)
    loop.turn(Add(other), Add(alone))
    told = []
    while loop.engine.has_work:
        for event in loop.turn():
            if isinstance(event, Scheduled):
                assert event.alone == Attempt("a", 0)
            if isinstance(event, Scheduled | StepReport):
                told.append(event.alone)
    assert told.count(Attempt("a", 0)) == (2 if runs_ahead else 1) * GREEDY.max_tokens
    assert told[-1] is None


def test_start_is_reported_before_the_model_runs() -> None:
    loop = Loop("prefill")
    seen: list[int] = []
    send = loop.channel.send

    def note_and_send(event: Event) -> None:
        seen.append(loop.runner.num_tokens_fed)
        send(event)

    loop.channel.send = note_and_send  # type: ignore[method-assign]
    first, last = loop.turn(Add(make_spec("a", make_prompt(9), GREEDY, "prefill")))
    assert isinstance(first, Scheduled) and isinstance(last, StepReport)
    assert seen == [0, 9]
    assert first.started == ((Attempt("a", 0), 0),)
    assert [attempt for attempt, _ in last.sealed] == [Attempt("a", 0)]
    assert last.counters["prompt_tokens:computed"] == 9
    assert first.start_ns <= last.end_ns


def test_a_step_that_ran_ahead_began_when_the_one_before_it_ended() -> None:
    loop = Loop("decode", runs_ahead=True)
    started = report_of(loop.turn(Add(make_spec("a", make_prompt(9), GREEDY))))
    assert not started.chunks and not started.tokens
    first, second = report_of(loop.turn()), report_of(loop.turn())
    assert [len(report.tokens) for report in (first, second)] == [1, 1]
    assert first.start_ns == started.start_ns
    assert second.start_ns == first.end_ns


def test_release_and_abort_free_the_blocks_of_a_sealed_prompt() -> None:
    for command in (Release(Attempt("a", 0)), Abort(Attempt("a", 0))):
        loop = Loop("prefill")
        loop.turn(Add(make_spec("a", make_prompt(9), GREEDY, "prefill")))
        assert report_of(loop.turn()).load.held == 3
        assert report_of(loop.turn(command, command)).load.held == 0


def test_a_reservation_is_answered_and_an_adopted_one_decodes() -> None:
    loop = Loop("decode")
    attempt = Attempt("a", 0)
    scheduled, _ = loop.turn(Reserve(make_spec("a", make_prompt(9), GREEDY, "decode")))
    assert isinstance(scheduled, Scheduled)
    [reserved] = scheduled.reserved
    assert (reserved.attempt, len(reserved.block_ids), reserved.num_present_blocks) == (
        attempt,
        3,
        0,
    )
    [run] = report_of(loop.turn(Adopt(attempt, TokenRun("a", 0, 0, (5,))))).tokens
    assert (run.index, run.token_ids[0], len(run.token_ids)) == (0, 5, 2)


def device_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while it is busy with a long step, however slow this machine is."""
    monkeypatch.setattr(HostTokens, "ready", lambda self: False)
    monkeypatch.setattr(StepClock, "predict", lambda self, batch: 600.0)


def test_kv_that_arrives_while_a_step_runs_joins_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    device_works(monkeypatch)
    loop = Loop("decode", num_blocks=16, runs_ahead=True)
    first, second = Attempt("a", 0), Attempt("b", 0)
    for name in "ab":
        loop.channel.put(Reserve(make_spec(name, make_prompt(9), GREEDY, "decode")))
    loop.turn()
    loop.turn(Adopt(first, TokenRun("a", 0, 0, (5,))), Nearing(second))
    receive, limits_s = loop.channel.receive, []

    def arrives_while_waiting(limit_s: float | None = 0.0) -> list[Command]:
        if limit_s:
            limits_s.append(limit_s)
            loop.channel.put(Adopt(second, TokenRun("b", 0, 0, (5,))))
        return receive(limit_s)

    monkeypatch.setattr(loop.channel, "receive", arrives_while_waiting)
    fed = loop.runner.num_tokens_fed
    loop.turn()
    assert loop.runner.num_tokens_fed == fed + 2, "both sequences are in the step"
    assert len(limits_s) == 1, "nobody is awaited any more"
    loop.turn()
    assert len(limits_s) == 1


def test_a_step_is_late_for_awaited_kv_alone_and_never_for_an_idle_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop("decode", num_blocks=16, runs_ahead=True)
    for name in "ab":
        loop.channel.put(Reserve(make_spec(name, make_prompt(9), GREEDY, "decode")))
    loop.turn(Nearing(Attempt("c", 0)))
    loop.turn(Nearing(Attempt("a", 0)), Adopt(Attempt("a", 0), TokenRun("a", 0, 0, (5,))))
    assert loop.engine.in_flight
    with monkeypatch.context() as patch:
        device_works(patch)
        assert loop.engine.next_launch.due_s() == 0, "token 1 of the other is far"
    loop.engine.near(Attempt("b", 0))
    assert loop.engine.next_launch.due_s() == 0, "the device is done"
    device_works(monkeypatch)
    assert loop.engine.next_launch.due_s() > 0
    loop.engine.abort(Attempt("b", 0))
    assert loop.engine.next_launch.due_s() == 0, "nobody is awaited"


def test_what_never_fits_is_refused_and_nothing_is_kept() -> None:
    loop = Loop("decode", num_blocks=2)
    refused, _ = loop.turn(Reserve(make_spec("a", make_prompt(30), GREEDY, "decode")))
    assert isinstance(refused, Refused) and refused.reason == "too_long"
    assert not loop.engine.sequences


def test_a_prompt_without_a_reason_is_refused_by_the_engine_too() -> None:
    loop = Loop("decode")
    spec = replace(make_spec("a", make_prompt(4), GREEDY), reason="")
    refused, _ = loop.turn(Add(spec))
    assert isinstance(refused, Refused) and not refused.reason
    assert not loop.engine.has_work


def test_a_token_1_that_does_not_continue_costs_the_attempt_only() -> None:
    loop = Loop("decode")
    attempt = Attempt("a", 0)
    loop.turn(Reserve(make_spec("a", make_prompt(9), GREEDY, "decode")))
    refused, _ = loop.turn(Adopt(attempt, TokenRun("a", 0, 3, (5,))))
    assert isinstance(refused, Refused) and refused.attempt == attempt
    assert report_of(loop.turn(Abort(attempt))).load.held == 0


def test_an_adoption_that_comes_too_late_does_nothing() -> None:
    loop = Loop("decode")
    attempt = Attempt("a", 0)
    loop.turn(Reserve(make_spec("a", make_prompt(9), GREEDY, "decode")))
    [report] = loop.turn(Abort(attempt), Adopt(attempt, TokenRun("a", 0, 0, (5,))))
    assert isinstance(report, StepReport)
    assert (report.load.held, report.tokens) == (0, ())


@pytest.mark.parametrize(
    ("stage", "role", "local"),
    [
        ("prefill", "prefill", False),
        ("decode", "decode", False),
        ("prefill", "decode", True),
        ("decode", "decode", True),
    ],
)
def test_a_planted_delay_is_slept_once_for_each_request(
    monkeypatch: pytest.MonkeyPatch, stage: str, role: str, local: bool
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    loop = Loop(role, planted_faults=f"{stage}=200")
    if local:
        loop.turn(Add(make_spec("a", make_prompt(20), GREEDY)))
    elif role == "prefill":
        loop.turn(Add(make_spec("a", make_prompt(20), GREEDY, "prefill")))
    else:
        loop.turn(Reserve(make_spec("a", make_prompt(9), GREEDY, "decode")))
        loop.turn(Adopt(Attempt("a", 0), TokenRun("a", 0, 0, (5,))))
    while loop.engine.has_work:
        loop.turn()
    assert slept == [0.2]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_every_token_is_told_before_its_sequence_is_handed_back(runs_ahead: bool) -> None:
    """Two sequences outgrow the pool; the younger gives way."""
    loop = Loop("decode", num_blocks=8, runs_ahead=runs_ahead)
    long = Sampling(max_tokens=20, temperature=0.0, ignore_eos=True)
    prompts = {name: make_prompt(7, salt) for salt, name in enumerate("ab")}
    for name, prompt in prompts.items():
        loop.channel.put(Reserve(make_spec(name, prompt, long, "decode")))
    loop.loop.turn()
    for name, prompt in prompts.items():
        table = loop.engine.sequences[Attempt(name, 0)].block_table
        for at, token_id in enumerate(prompt):
            loop.runner.kv[table[at // 4], at % 4] = (token_id, at)
        first = answer_alone(prompt, 7, long, 33)[0]
        loop.channel.put(Adopt(Attempt(name, 0), TokenRun(name, 0, 0, (first,))))
    while loop.engine.has_work or loop.channel.commands:
        loop.loop.turn()
    gone: set[Attempt] = set()
    for event in loop.channel.events:
        if isinstance(event, Scheduled):
            gone.update(event.handed_back)
        if isinstance(event, StepReport):
            assert gone.isdisjoint(run.attempt for run in event.tokens)
    assert gone == {Attempt("b", 0)}
