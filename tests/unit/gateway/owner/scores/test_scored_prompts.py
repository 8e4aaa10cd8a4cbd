"""Log-probabilities of prompts at the gateway: whole before any token, of one attempt, never left
out in silence."""

from dataclasses import replace

import pytest

from services.gateway.owner.generation import GenerateRequest, Generation
from shared.errors import AttemptError
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.protocol import Assign, Cancel, Receive, Scored
from tests.support.oracles.prompt_values import TokenValues, piece_of, values_of
from tests.unit.gateway.owner.gateway_bench import (
    VOCAB_SIZE,
    Bench,
    FakeWorker,
    settle,
    started,
    until,
)

pytestmark = pytest.mark.anyio
NUM_PROMPT = 40
VALUES = [TokenValues(-at / 8, at, (at, at + 1), (-0.5, -1.5)) for at in range(1, NUM_PROMPT)]


def asking(bench: Bench) -> GenerateRequest:
    return replace(bench.request(num_prompt=NUM_PROMPT), prompt_logprobs=2)


def tell(worker: FakeWorker, first: int, end: int, values: list[TokenValues] = VALUES) -> None:
    """Those of tokens [first, end), for the last ASSIGN."""
    say(worker, piece_of(values[first - 1 : end - 1], first))


def say(worker: FakeWorker, piece: PromptLogprobs) -> None:
    attempt = worker.last(Assign).work.attempt
    worker.say(Scored(attempt, worker.incarnation, piece))


async def read(generation: Generation) -> list[int]:
    return [token async for delta in generation for token in delta.token_ids]


def pair(number: int = 0) -> tuple[FakeWorker, FakeWorker]:
    return FakeWorker("prefill", f"p{number}"), FakeWorker("decode", f"d{number}")


async def test_they_come_in_pieces_before_the_first_token() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(asking(bench))
        assert p.last(Assign).work.prompt_logprobs == 2
        assert bench.live("r1").block_hashes == (), "no worker's cache makes it cheaper"
        p.start()
        tell(p, 1, 20)
        tell(p, 20, NUM_PROMPT)
        p.tokens(0, 10)
        d.tokens(0, 10)
        d.tokens(1, 11)
        d.tokens(2, 12, reason="length")
        assert await read(generation) == [10, 11, 12]
        assert values_of(generation.prompt_logprobs) == VALUES


async def test_tokens_of_the_decode_worker_that_overtake_them_wait() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(asking(bench))
        p.start()
        tell(p, 1, 20)
        d.tokens(0, 10)
        d.tokens(1, 11)
        await settle()
        assert generation.take() is None
        tell(p, 20, NUM_PROMPT)
        p.tokens(0, 10)
        await settle()
        delta = generation.take()
        assert delta is not None and delta.token_ids == (10, 11)
        assert values_of(generation.prompt_logprobs) == VALUES


async def test_a_worker_that_leaves_them_out_has_failed_the_attempt() -> None:
    """As one of an earlier release would."""
    (p, d), (other, _) = pair(), pair(1)
    async with started(Bench(max_attempts=2)) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(asking(bench))
        p.start()
        p.tokens(0, 10)
        assert p.last(Cancel).attempt.epoch == 0
        assert generation.take() is None
        await bench.add(other)
        await until(lambda: bench.live("r1").machine.prefill_incarnation is not None)
        second = next(each for each in (p, other) if each.all(Assign)[-1:] and _epoch(each) == 1)
        second.start()
        second.tokens(0, 10)
        with pytest.raises(AttemptError, match="no_prompt_logprobs"):
            await read(generation)


def _epoch(worker: FakeWorker) -> int:
    return worker.last(Assign).work.attempt.epoch


@pytest.mark.parametrize("at", [20, NUM_PROMPT - 1])
async def test_a_prompt_that_is_lost_halfway_is_told_from_its_start(at: int) -> None:
    (p, d), (other, _) = pair(), pair(1)
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(asking(bench))
        p.start()
        tell(p, 1, at, [one._replace(rank=7) for one in VALUES])
        d.tokens(0, 10)
        await bench.add(other)
        p.die()
        await until(lambda: bool(other.all(Assign)))
        work = other.last(Assign).work
        assert (work.attempt.epoch, len(work.token_ids)) == (1, NUM_PROMPT)
        assert work.prompt_logprobs == 2
        other.start()
        tell(other, 1, NUM_PROMPT)
        other.tokens(0, 10)
        assert d.last(Receive).work.attempt.epoch == 1
        d.run(d.last(Receive), 0, 10)
        d.run(d.last(Receive), 1, 11, 12, reason="length")
        assert await read(generation) == [10, 11, 12]
        assert values_of(generation.prompt_logprobs) == VALUES


async def test_what_was_told_is_not_asked_for_again() -> None:
    (p, d), (_, other) = pair(), pair(1)
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(asking(bench))
        p.start()
        tell(p, 1, NUM_PROMPT)
        p.tokens(0, 10)
        d.tokens(0, 10)
        await bench.add(other)
        d.die()
        await until(lambda: len(p.all(Assign)) == 2)
        work = p.last(Assign).work
        assert (work.prompt_logprobs, work.token_ids[-1]) == (-1, 10)
        assert len(bench.live("r1").block_hashes) == NUM_PROMPT // 16, "its cache serves again"
        p.start()
        tell(p, 1, NUM_PROMPT, [one._replace(rank=9) for one in VALUES])
        p.tokens(1, 11)
        other.run(other.last(Receive), 1, 11, 12, reason="length")
        assert await read(generation) == [10, 11, 12]
        assert values_of(generation.prompt_logprobs) == VALUES


@pytest.mark.parametrize(
    "piece",
    [
        piece_of(VALUES[1:5], 2),
        piece_of(VALUES, 1)._replace(ranks=b""),
        piece_of([one._replace(top_ids=(1,), top_logprobs=(0.0,)) for one in VALUES], 1),
        piece_of([*VALUES, VALUES[0]], 1),
        piece_of([VALUES[0]._replace(top_ids=(1, VOCAB_SIZE))], 1),
        PromptLogprobs(0, *piece_of(VALUES[:1])[1:]),
    ],
)
async def test_a_piece_that_cannot_be_costs_the_attempt(piece: PromptLogprobs) -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(asking(bench))
        p.start()
        say(p, piece)
        assert p.last(Cancel).attempt.epoch == 0
        assert bench.live("r1").machine.epoch == 1


async def test_a_prompt_of_one_token_has_none_to_wait_for() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        request = replace(bench.request(num_prompt=1, max_tokens=1), prompt_logprobs=1)
        generation = bench.door.submit(request)
        p.start()
        p.tokens(0, 10, reason="length")
        assert await read(generation) == [10]
        assert not generation.prompt_logprobs


async def test_nobody_asked() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request())
        p.start()
        tell(p, 1, NUM_PROMPT)
        p.tokens(0, 10)
        await settle()
        assert generation.take() is not None
        assert not generation.prompt_logprobs
