"""A random tiny model with a tokenizer that knows some JSON, and engines that follow grammars.

Left alone it never says anything that is JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shared.engine.build import load_grammars
from shared.engine.engine import Engine
from shared.engine.handover.kv_pool import host_pool
from shared.engine.layers.attention import TiledAttention
from shared.engine.layers.kv_cache import pool_of
from shared.engine.layers.model import Model
from shared.engine.running.model_runner import ModelRunner
from shared.engine.sampling.sampler import Sampler
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.grammars import Grammars
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import SequenceSpec
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.model.checkpoint import Checkpoint, kv_layout
from shared.protocol import Attempt, Sampling, TokenRun, Work
from tests.support.models.tiny_model import TINY, model_of, write_checkpoint

VOCAB_SIZE = 512
BLOCK_SIZE = 16
MAX_MODEL_LEN = 1024
END = "<|im_end|>"
CORPUS = [
    '{"name": "the quick brown fox", "age": 12, "tags": ["red", "green"], "ok": true}',
    '{"value": null, "items": [1, 2, 3], "nested": {"kind": "circle", "radius": 0.5}}',
    '[{"a": false}, {"b": "2026-11-21T10:00:00Z"}, {"c": "é日本語🙂"}]',
]
ROOT = b"structured"


@dataclass(frozen=True)
class StructuredModel:
    """Weights, tokenizer and grammars that engines of a test share."""

    checkpoint: Checkpoint
    model: Model
    layout: KVLayout
    tokenizer: Tokenizer

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.checkpoint.eos_token_ids

    def engine(
        self,
        role: Literal["prefill", "decode"] = "decode",
        num_blocks: int = 256,
        grammars: Grammars | None = None,
        sampler: Sampler | None = None,
    ) -> Engine:
        memory = KVMemory.create(self.layout, num_blocks)
        scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE, memory.generations),
            max_num_batched_tokens=128,
            max_num_seqs=32,
            max_model_len=MAX_MODEL_LEN,
        )
        return Engine(
            ModelRunner(self.model, pool_of(memory).fill_(torch.nan), TiledAttention()),
            scheduler,
            sampler or Sampler(),
            host_pool(memory),
            role,
            grammars or load_grammars(self.checkpoint),
        )

    def text(self, token_ids: Sequence[int]) -> str:
        """What a client would read."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def structured_model(path: Path) -> StructuredModel:
    """A fresh checkpoint in `path`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    eos = tokenizer.token_to_id(END)
    checkpoint = write_checkpoint(
        path,
        {
            **TINY,
            "vocab_size": VOCAB_SIZE,
            "eos_token_id": eos,
            "max_position_embeddings": MAX_MODEL_LEN,
        },
    )
    tokenizer.save(str(path / "tokenizer.json"))
    model = model_of(checkpoint, MAX_MODEL_LEN)
    return StructuredModel(
        checkpoint, model, kv_layout(checkpoint, "float32", BLOCK_SIZE), tokenizer
    )


def spec_of(
    rid: str,
    prompt: tuple[int, ...],
    sampling: Sampling,
    mode: Literal["full", "prefill", "decode"] = "full",
    output: tuple[int, ...] = (),
) -> SequenceSpec:
    """An attempt as a worker tells it to its engine."""
    work = Work(Attempt(rid, 0), (*prompt, *output), len(prompt), ROOT, sampling)
    return SequenceSpec.of(work, BLOCK_SIZE, mode, "agg" if mode == "full" else "")


def run_all(engine: Engine, specs: Sequence[SequenceSpec]) -> dict[str, list[TokenRun]]:
    """Every sequence to its end; the runs of each request."""
    for spec in specs:
        engine.add(spec)
    runs: dict[str, list[TokenRun]] = {spec.work.attempt.rid: [] for spec in specs}
    while engine.sequences:
        output = engine.step()
        assert not (output.failed or output.refused), output
        for run in output.tokens:
            runs[run.rid].append(run)
    return runs


def tokens_of(runs: Sequence[TokenRun]) -> list[int]:
    return [token for run in runs for token in run.token_ids]
