"""A model whose logits hash the token history it finds through block tables and slots.

Its "KV" of a position is the pair (token id, position). Logits of a row are a pure function of
the pairs read back through the block table, so a wrong table, slot, copy or a block that
somebody else rewrote gives other tokens than `answer_alone`.
"""

import os
import time
from collections.abc import Iterator

import numpy as np
import torch

from shared.engine.engine import Engine
from shared.engine.handover.kv_pool import host_pool
from shared.engine.handover.output import StepOutput
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.running.model_runner import OnStored, to_tensors
from shared.engine.sampling.prompt_scores import PromptScorer
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampler import Sampler
from shared.engine.scheduling.batch import HostBatch
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Mode, SequenceSpec
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.protocol import DEFAULT_PRIORITY, Attempt, Sampling, Work
from tests.support.oracles.engine_integrity import check_engine
from tests.unit.engine.sampling.plain_sampling import plain_logits, without_penalties

VOCAB_SIZE = 48
BLOCK_SIZE = 4
WHOLE_ROWS = 6
"""of a runner that runs ahead, as a GPU does: small steps with chunks are started as a whole"""
ROOT = bytes(32)
LAYOUT = KVLayout("fake", "float32", 1, 2, 1, 2, BLOCK_SIZE)
"""64 bytes: as many as the fake runner keeps of a block"""


class ForgetfulMemory(KVMemory):
    """Blocks smaller than a page that are lost all the same when they are given back."""

    def discard(self, block_id: int) -> None:
        self.block(block_id)[:] = os.urandom(self.layout.block_bytes)


class FakeRunner:
    """Stands in for the model runner; counts what it was fed."""

    device = torch.device("cpu")

    def __init__(self, num_blocks: int, *, runs_ahead: bool = False) -> None:
        self.runs_ahead = runs_ahead
        self.whole_rows = WHOLE_ROWS if runs_ahead else 0
        self.kv = np.full((num_blocks, BLOCK_SIZE, 2), -1, dtype=np.int64)
        self.num_tokens_fed = 0
        self.max_tokens_fed = 0
        self.chunk_ends: list[int] = []
        self.num_exercises = 0
        self.num_rows_scored = 0
        self.scorer = PromptScorer(self._logits_of, 4)
        self._batch: BatchTensors | None = None

    def run(
        self,
        packed: HostBatch,
        previous: torch.Tensor | None = None,
        on_stored: OnStored | None = None,
    ) -> torch.Tensor:
        batch = to_tensors(packed, previous)
        sources, targets = batch.copies.numpy().T
        self.kv[targets] = self.kv[sources]
        slots = batch.slot_mapping.numpy()
        pairs = np.stack([batch.input_ids.numpy(), batch.positions.numpy()], axis=1)
        assert len(set(slots.tolist())) == len(slots), "two tokens in one slot"
        self.kv.reshape(-1, 2)[slots] = pairs
        self.num_tokens_fed += len(slots)
        self.max_tokens_fed = max(self.max_tokens_fed, len(slots))
        self.chunk_ends = [
            length
            for length, count in zip(batch.context_lens_host, batch.query_lens, strict=True)
            if count > 1
        ]
        if packed.scores is not None:
            self.num_rows_scored += len(packed.scores.rows)
            self._batch = batch
            self.scorer.score(packed.scores, torch.arange(len(slots)))
        return torch.stack(
            [self._logits(batch, row) for row in batch.logits_rows.tolist()]
            or [torch.zeros(VOCAB_SIZE)]
        )[: len(batch.logits_rows)]

    def meet(self) -> None:
        return None

    def rehearsal(self) -> HostBatch | None:
        return None

    def exercise(self) -> torch.Tensor | None:
        self.num_exercises += 1
        return torch.zeros(1, VOCAB_SIZE)

    def _logits_of(self, rows: torch.Tensor) -> torch.Tensor:
        assert self._batch is not None
        return torch.stack([self._logits(self._batch, row) for row in rows.tolist()])

    def _logits(self, batch: BatchTensors, row: int) -> torch.Tensor:
        index = int(np.searchsorted(np.cumsum(batch.query_lens), row, side="right"))
        length = int(batch.positions[row]) + 1
        width = -(-length // BLOCK_SIZE)
        table = batch.block_tables[index, :width].numpy()
        history = self.kv[table].reshape(-1, 2)[:length]
        return logits_of([(int(token), int(position)) for token, position in history])


def logits_of(history: list[tuple[int, int]]) -> torch.Tensor:
    """f32[vocab], spread enough that equal logits do not occur."""
    state = 17
    for token_id, position in history:
        state = (state * 1_000_003 + token_id * 131 + position + 1) % 2**61
    return torch.from_numpy(
        np.random.default_rng(state).standard_normal(VOCAB_SIZE).astype(np.float32)
    )


def answer_alone(
    token_ids: tuple[int, ...], num_prompt_tokens: int, sampling: Sampling, max_model_len: int
) -> list[int]:
    """Tokens after token_ids in an undisturbed run, by the definition."""
    tokens = list(token_ids)
    neutral = without_penalties(sampling)
    endings = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        endings |= set(sampling.eos_token_ids)
    while True:
        row = SampleRow(neutral, len(tokens), len(tokens) - num_prompt_tokens)
        logits = logits_of([(token, index) for index, token in enumerate(tokens)])
        if neutral != sampling:
            logits = plain_logits(logits, sampling, tuple(tokens), num_prompt_tokens)
        tokens.append(Sampler().sample(logits[None], [row]).wait()[0].token_id)
        full = len(tokens) - num_prompt_tokens >= sampling.max_tokens
        if full or len(tokens) >= max_model_len or tokens[-1] in endings:
            return tokens[len(token_ids) :]


def fake_engine(
    num_blocks: int,
    *,
    role: str = "decode",
    budget: int = 16,
    max_num_seqs: int = 4,
    max_model_len: int = 64,
    prefix_cache: bool = True,
    runs_ahead: bool = False,
) -> tuple[Engine, FakeRunner]:
    """An engine over a fake runner with blocks of 4 tokens."""
    memory = KVMemory.create(LAYOUT, num_blocks)
    pool = BlockPool(num_blocks, BLOCK_SIZE, memory.generations, prefix_cache=prefix_cache)
    scheduler = Scheduler(
        pool,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
    )
    runner = FakeRunner(num_blocks, runs_ahead=runs_ahead)
    return Engine(
        runner, scheduler, Sampler(), host_pool(memory), "decode" if role == "decode" else "prefill"
    ), runner


def make_spec(
    name: str,
    token_ids: tuple[int, ...],
    sampling: Sampling,
    mode: Mode = "full",
    *,
    num_prompt_tokens: int | None = None,
    epoch: int = 0,
    priority: int = DEFAULT_PRIORITY,
) -> SequenceSpec:
    """A spec with the hashes a gateway would send, of a request that a worker may refuse."""
    num_prompt = len(token_ids) if num_prompt_tokens is None else num_prompt_tokens
    attempt = Attempt(name, epoch)
    facts = (attempt, token_ids, num_prompt, ROOT, sampling)
    work = Work(*facts, priority=priority, accepted=False)
    return SequenceSpec.of(work, BLOCK_SIZE, mode, "agg" if mode == "full" else "")


def make_prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * index + 3 * salt + index * index) % 48 for index in range(length))


def steps(engine: Engine) -> Iterator[StepOutput]:
    """Until nothing is left to do and no KV is on its way."""
    while engine.has_work:
        if engine.has_work:
            yield engine.step()
        else:
            time.sleep(0.0001)


def run_to_end(engine: Engine, max_steps: int = 500) -> list[StepOutput]:
    outputs = []
    for output in steps(engine):
        outputs.append(output)
        check_engine(engine)
        assert len(outputs) < max_steps
    return outputs


def tokens_of(outputs: list[StepOutput], attempt: Attempt) -> list[int]:
    """The client's view: applied by index, repeats must agree."""
    tokens: dict[int, int] = {}
    for output in outputs:
        for run in output.tokens:
            if run.attempt == attempt:
                for offset, token in enumerate(run.token_ids):
                    assert tokens.setdefault(run.index + offset, token) == token
    assert sorted(tokens) == list(range(min(tokens, default=0), max(tokens, default=-1) + 1))
    return [tokens[index] for index in sorted(tokens)]
