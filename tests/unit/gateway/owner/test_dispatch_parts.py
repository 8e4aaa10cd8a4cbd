"""The small parts of dispatch: throughput, fitted cost, generation, receipts."""

import json

import anyio
import pytest

from services.gateway.owner.generation import Delta, Generation
from services.gateway.owner.records.receipt import Receipt
from services.gateway.owner.records.receipts import Receipts
from services.gateway.owner.timing import PATIENCE_S
from shared.errors import AttemptError
from shared.protocol import FinishReason
from shared.queue.throughput import LEAST_S, WINDOW_S, Throughput
from shared.worker.engine_client import LISTEN_S
from tests.support.settings import settings_with


def test_time_per_end_is_of_the_time_in_which_there_was_work() -> None:
    throughput = Throughput()
    for second in (10.0, 20.0):
        throughput.note_work(second)
        throughput.note_end(second + 0.5, idle=False)
        throughput.note_end(second + 2.0, idle=True)
    assert throughput.per_end_s(25.0) == 1.0
    assert throughput.per_end_s(60.0) == LEAST_S


def test_a_pause_after_many_ends_says_little_of_those_to_come() -> None:
    throughput = Throughput()
    assert throughput.expected_end_s(5.0) == 0
    throughput.note_work(10.0)
    assert throughput.expected_end_s(20.0) == 0
    for tenth in range(100):
        throughput.note_end(20.0 + tenth / 10, idle=False)
    assert throughput.expected_end_s(29.9) == pytest.approx(19.9 / 101)
    assert throughput.expected_end_s(39.9) == pytest.approx(29.9 / 101)


def test_ends_that_are_past_are_forgotten_although_nobody_asks() -> None:
    """A cell that refuses nobody never asks."""
    throughput = Throughput()
    throughput.note_work(0.0)
    for second in range(1000):
        throughput.note_end(float(second), idle=False)
    assert len(throughput._gaps) <= WINDOW_S + 1
    assert throughput.per_end_s(999.0) == 1.0


def test_time_per_end_grows_while_nothing_ends() -> None:
    throughput = Throughput()
    throughput.note_work(100.0)
    assert throughput.per_end_s(100.0) == LEAST_S
    assert (throughput.per_end_s(102.0), throughput.per_end_s(109.0)) == (2.0, 9.0)
    throughput.note_end(109.0, idle=False)
    for tenth in range(1, 91):
        throughput.note_end(109.0 + tenth / 10, idle=False)
    assert throughput.per_end_s(118.0) == pytest.approx(18.0 / 91)
    assert throughput.per_end_s(121.0) == pytest.approx(3.0)


class NoOwner:
    """Remembers what a generation asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def finish(self, rid: str, reason: FinishReason, num_tokens: int) -> None:
        self.asked.append((reason, num_tokens))

    def cancel(self, rid: str, num_tokens: int) -> None:
        self.asked.append(("cancel", num_tokens))


@pytest.mark.anyio
async def test_a_slow_reader_gets_what_waited_as_one_delta() -> None:
    owner = NoOwner()
    generation = Generation("r", owner)
    for token in range(3):
        generation.put(Delta((token,), ()))
    generation.put(Delta((3,), (), "stop"))
    generation.end()
    assert [delta async for delta in generation] == [Delta((0, 1, 2, 3), (), "stop")]
    await generation.finish("stop")
    await generation.finish("stop", 2)
    generation.cancel()
    assert owner.asked == [("stop", 4), ("stop", 2), ("cancel", 4)]


@pytest.mark.anyio
async def test_a_failure_comes_after_the_tokens_before_it() -> None:
    generation = Generation("r", NoOwner())

    async def feed() -> None:
        generation.put(Delta((1,), ()))
        generation.fail(AttemptError("gone", code="x"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed)
        assert (await anext(generation)).token_ids == (1,)
        with pytest.raises(AttemptError):
            await anext(generation)


def test_receipts_keep_the_last_ones() -> None:
    receipts = Receipts(2)
    for rid in ("a", "b", "c"):
        receipts.add(Receipt(rid, "chat", 1, 0, 0, ended_ns=1))
    assert receipts.get("a") is None
    receipts.add(Receipt("c", "chat", 1, 0, 0))
    last = receipts.get("c")
    assert last is not None
    assert (last.as_dict()["state"], last.critical_path_ms()) == ("live", {})


def test_receipts_of_what_lives_are_kept_with_all_of_their_group() -> None:
    receipts = Receipts(4, max_open=1)
    lone, member = Receipt("a", "chat", 1, 0, 0), Receipt("b", "chat", 1, 0, 0, group="g")
    receipts.add(lone)
    receipts.add(member)
    receipts.add(Receipt("c", "chat", 1, 0, 0, outcome="done", ended_ns=1, group="g", choice=1))

    def others(begin: int) -> None:
        for at in range(begin, begin + 20):
            receipts.add(Receipt(f"x{at}", "chat", 1, 0, 0, outcome="done", ended_ns=1, group="h"))

    others(0)
    assert receipts.get("a") is lone
    assert len((receipts.body("g") or {})["choices"]) == 2
    lone.ended_ns = member.ended_ns = 1
    others(20)
    assert [receipts.body(rid) for rid in ("a", "b", "c", "g")] == [None] * 4
    assert len(receipts._by_rid) == len(receipts._group_of) == len(receipts._groups["h"]) == 4


def test_packed_receipts_say_the_same() -> None:
    receipts = Receipts(4, max_open=1)
    ended = Receipt("a", "chat", 3, 1, 2, ended_ns=9)
    receipts.add(ended)
    body = json.loads(json.dumps(receipts.body("a")))
    assert receipts.get("a") is ended
    for rid in ("b", "c"):
        receipts.add(Receipt(rid, "chat", 1, 0, 0))
    assert receipts.get("a") is None
    assert json.loads(json.dumps(receipts.body("a"))) == body
    assert receipts.get("b") is not None, "it lives"
    assert receipts.body("nobody") is None


def test_a_hanging_engine_is_ended_while_its_requests_have_two_attempts_left() -> None:
    """With one worker, all attempts before that are in vain."""
    defaults = settings_with()
    ended_s = defaults.engine.silence_s + LISTEN_S
    assert ended_s < (defaults.limits.max_attempts - 2) * PATIENCE_S
