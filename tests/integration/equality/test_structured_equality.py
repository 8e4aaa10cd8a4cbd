"""Answers with a grammar are the same tokens alone, together, preempted, handed over, handed back.

The state of a grammar is rebuilt from the output tokens wherever a sequence goes on.
"""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
import torch

from shared.engine.engine import Engine
from shared.grammar import source
from shared.grammar.matcher import Matcher
from shared.protocol import Sampling
from tests.support.cases.schemas import SCHEMAS
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.models.structured_model import (
    StructuredModel,
    run_all,
    spec_of,
    structured_model,
    tokens_of,
)
from tests.support.pairs.marked_digests import MarkedDigests
from tests.support.pairs.worker_pair import PairGateway, PairRequest, StepWorker, drive

NUM_REQUESTS = 36
MAX_TOKENS = 60
NAMES = ("person", "map", "tree", "strings", "unicode keys", "nullable", "uuid", "expression")
pytestmark = pytest.mark.anyio
Answers = dict[str, tuple[int, ...]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StructuredModel:
    return structured_model(tmp_path_factory.mktemp("structured"))


def sampling(model: StructuredModel, number: int) -> Sampling:
    """Every fourth has no grammar; some are cut by max_tokens."""
    schema = SCHEMAS[NAMES[number % len(NAMES)]]
    return Sampling(
        max_tokens=MAX_TOKENS if number % 5 else 7,
        temperature=(1.0, 0.0, 0.8)[number % 3],
        seed=number,
        min_tokens=4 * (number % 2),
        ignore_eos=number % 6 == 0,
        eos_token_ids=model.eos_token_ids,
        repetition_penalty=1.2 if number % 7 == 0 else 1.0,
        grammar="" if number % 4 == 3 else source.json_schema(schema),
    )


def prompt(number: int) -> tuple[int, ...]:
    return tuple((7 * number + 3 * at) % 500 for at in range(5 + 3 * number))


def requests(model: StructuredModel) -> list[PairRequest]:
    return [
        PairRequest(f"r{number}", prompt(number), sampling(model, number))
        for number in range(NUM_REQUESTS)
    ]


def answers(served: Sequence[PairRequest]) -> Answers:
    return {request.rid: tuple(request.sequencer.token_ids) for request in served}


@pytest.fixture(scope="module")
def alone(model: StructuredModel) -> Answers:
    """Each in an engine of its own."""
    torch.set_num_threads(1)
    told: Answers = {}
    for request in requests(model):
        spec = spec_of(request.rid, request.prompt, request.sampling)
        told[request.rid] = tuple(tokens_of(run_all(model.engine(), [spec])[request.rid]))
    assert len({len(tokens) for tokens in told.values()}) > 8
    return told


def wake(engine: Engine, stirred: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_ready() -> None:
        loop.call_soon_threadsafe(stirred.set)

    engine.grammars.on_ready = on_ready


async def serve_pd(
    model: StructuredModel, num_blocks: tuple[int, int]
) -> tuple[Answers, PairGateway]:
    stirred, network = asyncio.Event(), MemoryNetwork()
    prefill_engine = model.engine("prefill", num_blocks[0])
    decode_engine = model.engine("decode", num_blocks[1])
    for engine in (prefill_engine, decode_engine):
        wake(engine, stirred)
    prefill = StepWorker(
        "prefill",
        "prefill",
        prefill_engine,
        MemoryTransport(
            prefill_engine.memory, "prefill", network, digester=MarkedDigests(prefill_engine)
        ),
        stirred,
    )
    decode = StepWorker(
        "decode",
        "decode",
        decode_engine,
        MemoryTransport(decode_engine.memory, "decode", network),
        stirred,
    )
    gateway = PairGateway(prefill, decode)
    await prefill.service.start()
    served = requests(model)
    try:
        for request in served:
            gateway.submit(request)
        await drive(gateway, (prefill, decode), stirred)
    finally:
        await decode.service.close()
        await prefill.service.close()
    assert decode.local_prefill_tokens() == 0
    return answers(served), gateway


async def test_pd_equals_each_alone(model: StructuredModel, alone: Answers) -> None:
    told, gateway = await serve_pd(model, (120, 256))
    assert told == alone
    assert gateway.num_retries == 0


async def test_pd_with_hand_backs_equals_each_alone(model: StructuredModel, alone: Answers) -> None:
    told, gateway = await serve_pd(model, (60, 22))
    assert gateway.num_retries > 0
    assert told == alone


async def test_preempted_equals_each_alone(model: StructuredModel, alone: Answers) -> None:
    engine = model.engine("decode", 24)
    served = requests(model)
    specs = [spec_of(request.rid, request.prompt, request.sampling) for request in served]
    told = {rid: tuple(tokens_of(runs)) for rid, runs in run_all(engine, specs).items()}
    assert engine.counters.preemptions > 0
    assert told == alone


def test_resumed_at_any_token_equals_undisturbed(model: StructuredModel, alone: Answers) -> None:
    """A retry computes here what another worker began."""
    served = next(r for r in requests(model) if r.sampling.grammar and len(alone[r.rid]) > 12)
    whole = alone[served.rid]
    engine = model.engine()
    for cut in range(1, len(whole), 2):
        spec = spec_of(served.rid, served.prompt, served.sampling, output=whole[:cut])
        assert (*whole[:cut], *tokens_of(run_all(engine, [spec])[served.rid])) == whole


async def test_a_grammar_that_starts_anew_after_a_hand_back_is_seen(
    model: StructuredModel, alone: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Matcher, "replay", lambda matcher, token_ids: None)
    told, gateway = await serve_pd(model, (60, 22))
    assert gateway.num_retries > 0
    assert told != alone
