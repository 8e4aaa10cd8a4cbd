"""Log-probabilities of prompts: those of one full pass of transformers, however the engine chunks
and batches, whatever its prefix cache has; and the same to the bit on this machine."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling, TokenRun, Work
from tests.support.models.built_engine import built_engine
from tests.support.oracles.prompt_values import TokenValues, values_from, values_of
from tests.support.oracles.transformers_oracle import VOCAB_SIZE, Case, random_oracle
from tests.support.settings import settings_with

BLOCK_SIZE = 16
NUM_TOP = 4
MAX_ERROR = 1e-4
"""as in test_parity"""
LENGTHS = (2, 16, 17, 33, 65, 130, 200)
CASES = {
    "llama": Case("llama"),
    "gpt2": Case("gpt2", seed=1),
    "mistral": Case("mistral", {"sliding_window": 33}),
}
WHOLE, SMALL = 512, 48
"""tokens of a step"""

Said = dict[str, tuple[list[TokenValues], list[int]]]
"""by prompt: its values, and the answer's tokens"""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CASES)
def test_values_equal_a_full_pass_of_transformers(name: str, tmp_path: Path) -> None:
    oracle, prompts = random_oracle(CASES[name], tmp_path), _prompts()
    together = _said(_engine(tmp_path, SMALL), prompts)
    for prompt in prompts:
        with torch.inference_mode():
            logits = oracle(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
        expected, (found, _) = values_from(logits, prompt, NUM_TOP), together[str(len(prompt))]
        assert len(found) == len(expected) == len(prompt) - 1
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=MAX_ERROR)
            assert mine.top_logprobs == pytest.approx(theirs.top_logprobs, abs=MAX_ERROR)
            assert abs(mine.rank - theirs.rank) <= 1, "neighbours may be as close as the error"


def test_chunks_batches_and_a_warm_cache_change_no_bit_and_asking_no_token(tmp_path: Path) -> None:
    random_oracle(CASES["llama"], tmp_path)
    prompts = _prompts()
    engine = _engine(tmp_path, SMALL)
    together = _said(engine, prompts)
    assert _said(engine, prompts) == together, "the cache is warm"
    whole = _engine(tmp_path, WHOLE)
    alone: Said = {}
    for prompt in prompts:
        alone |= _said(whole, [prompt])
    assert alone == together
    unasked = _said(_engine(tmp_path, SMALL), prompts, num_top=-1)
    assert {name: tokens for name, (_, tokens) in unasked.items()} == {
        name: tokens for name, (_, tokens) in together.items()
    }
    assert not any(values for values, _ in unasked.values())


def _engine(path: Path, step_tokens: int) -> Engine:
    settings = settings_with(
        model=str(path),
        device="cpu",
        block_size=BLOCK_SIZE,
        kv_blocks=200,
        max_num_batched_tokens=step_tokens,
        max_num_seqs=8,
    )
    return built_engine(settings, "decode")


def _prompts() -> list[list[int]]:
    numbers = random.Random(5)  # noqa: S311
    return [[numbers.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def _said(engine: Engine, prompts: Sequence[Sequence[int]], num_top: int = NUM_TOP) -> Said:
    """All prompts at once."""
    for prompt in prompts:
        work = Work(
            attempt=Attempt(str(len(prompt)), 0),
            token_ids=tuple(prompt),
            num_prompt_tokens=len(prompt),
            hash_root=bytes(32),
            sampling=Sampling(max_tokens=8, temperature=0),
            prompt_logprobs=num_top,
        )
        engine.add(SequenceSpec.of(work, BLOCK_SIZE, "full", "agg"))
    outputs = []
    while engine.has_work:
        outputs.append(engine.step())
    runs: list[TokenRun] = [run for output in outputs for run in output.tokens]
    pieces = [told for output in outputs for told in output.scored]
    return {
        name: (
            values_of(piece for attempt, piece in pieces if attempt.rid == name),
            [token for run in runs if run.rid == name for token in run.token_ids],
        )
        for name in (str(len(prompt)) for prompt in prompts)
    }
