"""pd = agg = one engine alone: the same tokens, and the same bits in every sampled row of logits.

Real engines on a random fp32 checkpoint, the real services and transports, a gateway that
retries; block pools so small that sequences are preempted and handed back. The reference is
each prompt alone in an engine of its own.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.kv_pool import host_pool
from shared.engine.layers.attention import TiledAttention
from shared.engine.layers.kv_cache import pool_of
from shared.engine.layers.model import Model
from shared.engine.running.model_runner import ModelRunner
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampled_tokens import HostTokens
from shared.engine.sampling.sampler import Sampler
from shared.engine.sampling.token_counts import TokenCounts, counts_for
from shared.engine.scheduling import sequence
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import SequenceSpec
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.model.checkpoint import Checkpoint, kv_layout
from shared.protocol import Attempt, Sampling, TokenLogprobs, Tokens, Work
from shared.transfer.transport import KVTransport
from shared.transfer.ways.tcp import tcp_transport
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.models.tiny_model import TINY, model_of, write_checkpoint
from tests.support.oracles.one_ulp_off import OneUlpOff
from tests.support.pairs.marked_digests import MarkedDigests
from tests.support.pairs.worker_pair import ROOT, PairGateway, PairRequest, StepWorker, drive

BLOCK_SIZE = 16
MAX_MODEL_LEN = 192
NUM_PROMPTS = 200
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 80, 96, 97, 127, 128, 129, 144)
EOS = 1
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class RowRecorder(Sampler):
    """Keeps the bits of every row it samples from, by (request, position). A request is known
    by its seed: no two share one."""

    def __init__(self) -> None:
        self.bits: dict[tuple[int, int], bytes] = {}
        self.num_contradictions = 0
        """rows that were sampled twice, with other bits"""

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> HostTokens:
        for row, values in zip(rows, logits, strict=True):
            bits = values.contiguous().numpy().tobytes()
            known = self.bits.setdefault((row.sampling.seed, row.position), bits)
            self.num_contradictions += known != bits
        return super().sample(logits, rows)


@dataclass(frozen=True)
class TinyModel:
    """Weights that all engines of this file share, and a way to make such engines."""

    checkpoint: Checkpoint
    model: Model
    layout: KVLayout

    def engine(
        self,
        recorder: Sampler,
        role: Literal["prefill", "decode"],
        num_blocks: int,
        budget: int = 40,
    ) -> Engine:
        memory = KVMemory.create(self.layout, num_blocks)
        kv_pool = pool_of(memory).fill_(torch.nan)
        scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE, memory.generations),
            max_num_batched_tokens=budget,
            max_num_seqs=12,
            max_model_len=MAX_MODEL_LEN,
        )
        runner = ModelRunner(self.model, kv_pool, TiledAttention())
        return Engine(runner, scheduler, recorder, host_pool(memory), role)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    path: Path = tmp_path_factory.mktemp("tiny")
    checkpoint = write_checkpoint(path, TINY)
    model = model_of(checkpoint, MAX_MODEL_LEN)
    return TinyModel(checkpoint, model, kv_layout(checkpoint, "float32", BLOCK_SIZE))


@dataclass
class Answers:
    """What one way of serving the prompts gave."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, str | None] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    recorder: RowRecorder = field(default_factory=RowRecorder)

    def take(self, requests: Sequence[PairRequest]) -> None:
        for request in requests:
            self.tokens[request.rid] = request.sequencer.token_ids
            self.reasons[request.rid] = request.finish_reason
            self.logprobs[request.rid] = request.logprobs


def make_requests(num_prompts: int, first: int = 0) -> list[PairRequest]:
    """Prompts around block and tile borders, half of them behind a shared prefix; greedy and
    seeded sampling, a part of it penalised and biased; some answers of one token, some that may
    end at EOS."""
    numbers = random.Random(5)  # noqa: S311
    shared = [[numbers.randrange(2, 131) for _ in range(150)] for _ in range(6)]
    requests = []
    for index in range(first, first + num_prompts):
        numbers.seed(index)
        length = LENGTHS[index % len(LENGTHS)]
        prompt = [numbers.randrange(2, 131) for _ in range(length)]
        if numbers.random() < 0.5:
            prefix = shared[index % len(shared)][: numbers.choice((length, length // 2, 32))]
            prompt = (prefix + prompt)[:length]
        grows = numbers.random() < 0.45
        sampling = Sampling(
            max_tokens=numbers.randrange(36, 48) if grows else numbers.choice((1, 2, 5, 9, 18)),
            temperature=numbers.choice((0.0, 0.8)),
            top_k=numbers.choice((0, 0, 20)),
            top_p=numbers.choice((1.0, 0.9)),
            seed=index,
            min_tokens=numbers.choice((0, 3)),
            ignore_eos=grows,
            eos_token_ids=(EOS, 7, 11),
            logprobs=numbers.choice((-1, 0, 3)),
            **(penalties(numbers) if numbers.random() < 0.4 else {}),
        )
        requests.append(PairRequest(f"r{index}", tuple(prompt), sampling))
    return requests


def penalties(numbers: random.Random) -> dict[str, Any]:
    """What looks back at the tokens so far, and two ways of leaning towards some of them."""
    return {
        "min_p": numbers.choice((0.0, 0.1)),
        "presence_penalty": numbers.choice((0.0, 0.8, -0.5)),
        "frequency_penalty": numbers.choice((0.0, 0.4)),
        "repetition_penalty": numbers.choice((1.0, 1.3)),
        "logit_bias": tuple(
            (token_id, numbers.uniform(-2, 2)) for token_id in numbers.sample(range(2, 131), 12)
        ),
    }


def answer_alone(tiny: TinyModel, requests: Sequence[PairRequest]) -> Answers:
    """Each prompt in a fresh engine, nothing else in its batch, its pool or its cache."""
    answers = Answers()
    for request in requests:
        engine = tiny.engine(answers.recorder, "decode", 12, budget=256)
        prompt = request.prompt
        work = Work(Attempt(request.rid, 0), prompt, len(prompt), ROOT, request.sampling)
        engine.add(SequenceSpec.of(work, BLOCK_SIZE, "full", "agg"))
        runs = []
        while engine.has_work:
            runs += engine.step().tokens
        answers.tokens[request.rid] = [token for run in runs for token in run.token_ids]
        answers.reasons[request.rid] = runs[-1].finish_reason
        answers.logprobs[request.rid] = [entry for run in runs for entry in run.logprobs]
    return answers


def assert_equal(answers: Answers, alone: Answers) -> None:
    """Token for token, logprob for logprob, bit for bit."""
    assert answers.tokens == {rid: alone.tokens[rid] for rid in answers.tokens}
    assert answers.reasons == {rid: alone.reasons[rid] for rid in answers.reasons}
    assert answers.logprobs == {rid: alone.logprobs[rid] for rid in answers.logprobs}
    assert answers.recorder.num_contradictions == 0
    seeds = {int(rid[1:]) for rid in answers.tokens}
    wanted = {key: bits for key, bits in alone.recorder.bits.items() if key[0] in seeds}
    assert answers.recorder.bits.keys() == wanted.keys()
    wrong = [key for key, bits in answers.recorder.bits.items() if bits != wanted[key]]
    assert not wrong, f"{len(wrong)} of {len(wanted)} rows of logits differ"


class Pair:
    """A prefill and a decode worker of the tiny model, joined by one transport."""

    def __init__(
        self,
        tiny: TinyModel,
        transport: str,
        *,
        num_blocks: tuple[int, int],
        damage: bool = False,
    ) -> None:
        self.stirred = asyncio.Event()
        self.answers = Answers()
        self._damage = damage
        self._network = MemoryNetwork()
        self._transport = transport
        self.prefill = self._worker(tiny, "prefill", num_blocks[0])
        self.decode = self._worker(tiny, "decode", num_blocks[1])
        self.gateway = PairGateway(self.prefill, self.decode)

    async def serve(self, requests: Sequence[PairRequest]) -> Answers:
        """All at once; returns when every answer is there and every block is back."""
        await self.prefill.service.start()
        try:
            for request in requests:
                self.gateway.submit(request)
            await drive(self.gateway, (self.prefill, self.decode), self.stirred)
            for worker in (self.prefill, self.decode):
                worker.assert_all_blocks_back()
        finally:
            await self.decode.service.close()
            await self.prefill.service.close()
        self.answers.take(requests)
        return self.answers

    def assert_fault_free(self) -> None:
        assert self.gateway.num_retries == 0
        assert self.decode.local_prefill_tokens() == 0
        assert self.decode.engine.counters.prompt_tokens_computed == 0

    def _worker(
        self, tiny: TinyModel, role: Literal["prefill", "decode"], num_blocks: int
    ) -> StepWorker:
        engine = tiny.engine(self.answers.recorder, role, num_blocks)

        transport: KVTransport
        if self._transport == "tcp":
            transport = tcp_transport(engine.memory, role, digester=MarkedDigests(engine))
        else:
            transport = MemoryTransport(
                engine.memory, role, self._network, digester=MarkedDigests(engine)
            )
        if self._damage and role == "decode":
            transport = OneUlpOff(transport, engine.memory)
        return StepWorker(role, role, engine, transport, self.stirred)


@pytest.fixture(scope="module")
def alone(tiny: TinyModel) -> Answers:
    """The reference for every test here."""
    torch.set_num_threads(1)
    answers = answer_alone(tiny, make_requests(NUM_PROMPTS))
    lengths = {len(tokens) for tokens in answers.tokens.values()}
    assert {1, 2} < lengths and max(lengths) >= 40
    assert set(answers.reasons.values()) == {"stop", "length"}
    assert len({token for tokens in answers.tokens.values() for token in tokens}) > 20
    return answers


async def test_agg_with_preemption_equals_each_prompt_alone(
    tiny: TinyModel, alone: Answers
) -> None:
    answers, stirred = Answers(), asyncio.Event()
    engine = tiny.engine(answers.recorder, "decode", 30)
    worker = StepWorker(
        "decode",
        "decode",
        engine,
        MemoryTransport(engine.memory, "decode", MemoryNetwork()),
        stirred,
    )
    gateway = PairGateway(None, worker)
    requests = make_requests(NUM_PROMPTS)
    for request in requests:
        request.local = "agg"
        gateway.submit(request)
    await drive(gateway, (worker,), stirred)
    await worker.service.close()
    answers.take(requests)
    assert_equal(answers, alone)
    worker.assert_all_blocks_back()
    counters = engine.counters
    assert counters.preemptions > 0 and counters.prefix_hit_tokens > 0
    assert worker.local_prefill_tokens() == counters.prompt_tokens_computed > 0


async def test_pd_with_hand_backs_equals_each_prompt_alone(tiny: TinyModel, alone: Answers) -> None:
    pair = Pair(tiny, "memory", num_blocks=(36, 18))
    assert_equal(await pair.serve(make_requests(NUM_PROMPTS)), alone)
    assert pair.decode.engine.counters.handed_back > 0
    assert pair.gateway.num_retries == pair.decode.engine.counters.handed_back
    assert pair.prefill.engine.counters.prefix_hit_tokens > 0
    assert pair.decode.local_prefill_tokens() == 0


async def test_pd_over_tcp_equals_each_prompt_alone(tiny: TinyModel, alone: Answers) -> None:
    pair = Pair(tiny, "tcp", num_blocks=(36, 18))
    assert_equal(await pair.serve(make_requests(80)), alone)
    assert pair.decode.engine.counters.handed_back > 0
    assert pair.decode.state.counters["kv_transfer_bytes:tcp"] > 0


async def test_penalties_that_count_from_the_resumed_prompt_are_seen(
    tiny: TinyModel, alone: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handed-back request's output began before its second attempt did."""

    def count(sampling: Sampling, token_ids: tuple[int, ...], _: int) -> TokenCounts | None:
        return counts_for(sampling, token_ids, len(token_ids))

    monkeypatch.setattr(sequence, "counts_for", count)
    pair = Pair(tiny, "memory", num_blocks=(36, 18))
    requests = [r for r in make_requests(NUM_PROMPTS) if r.sampling.presence_penalty][:24]
    answers = await pair.serve(requests)
    assert pair.decode.engine.counters.handed_back > 0
    with pytest.raises(AssertionError):
        assert_equal(answers, alone)


async def test_one_ulp_in_one_transferred_block_is_seen(tiny: TinyModel, alone: Answers) -> None:
    pair = Pair(tiny, "memory", num_blocks=(80, 120), damage=True)
    answers = await pair.serve(make_requests(20))
    with pytest.raises(AssertionError, match=r"assert|differ"):
        assert_equal(answers, alone)


async def test_fault_free_pd_computes_no_prompt_on_the_decode_worker(
    tiny: TinyModel, alone: Answers
) -> None:
    pair = Pair(tiny, "memory", num_blocks=(80, 120))
    assert_equal(await pair.serve(make_requests(20)), alone)
    pair.assert_fault_free()
    counters = pair.decode.state.counters
    hits = pair.prefill.engine.counters.prefix_hit_tokens
    assert counters["kv_transfer_blocks:memory"] > 0 and hits > 0


async def test_a_planted_local_prefill_is_counted(tiny: TinyModel, alone: Answers) -> None:
    pair = Pair(tiny, "memory", num_blocks=(80, 120))
    requests = make_requests(6)
    requests[3].local = "slow_link"
    assert_equal(await pair.serve(requests), alone)
    assert pair.decode.local_prefill_tokens() == len(requests[3].prompt)
    with pytest.raises(AssertionError):
        pair.assert_fault_free()


async def test_decodes_frames_may_overtake_prefills(tiny: TinyModel, alone: Answers) -> None:
    """Prefill's link stands still after START; decode repeats token 1, so nothing is missed,
    and what prefill said comes last and changes nothing (R3)."""
    pair = Pair(tiny, "memory", num_blocks=(80, 120))
    await pair.prefill.service.start()
    request = next(r for r in make_requests(40) if len(alone.tokens[r.rid]) > 5)
    pair.gateway.submit(request)
    async with asyncio.timeout(20):
        pair.prefill.turn()
        pair.prefill.deliver()
        pair.gateway.pump(pair.prefill, limit=1)
        while not request.finish_reason:
            for worker in (pair.prefill, pair.decode):
                if worker.has_work:
                    worker.turn()
                worker.deliver()
            pair.gateway.pump(pair.decode)
            await asyncio.sleep(0)
    assert isinstance(pair.gateway.unread(pair.prefill)[0], Tokens)
    pair.gateway.pump(pair.prefill)
    await drive(pair.gateway, (pair.prefill, pair.decode), pair.stirred)
    pair.answers.take([request])
    assert_equal(pair.answers, alone)
    await pair.decode.service.close()
    await pair.prefill.service.close()
