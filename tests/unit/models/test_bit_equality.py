"""A sequence's logits have the same bits alone as in any company, chunking, cache or pool."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.layers import attention
from shared.engine.layers import matrices as layers
from shared.kv.layout import num_blocks_for
from tests.support.models.tiny_model import TINY, TINY_GPT2, Rows, TinyRunner, write_checkpoint

NUM_SCHEDULES = 25
"""per model; eight models make 200"""
LENGTHS = (1, 2, 15, 17, 63, 64, 65, 90, 130, 200)
NUM_BLOCKS = 200
MODELS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "grouped": (16, {}),
    "qwen3-one-kv-head": (
        5,
        {
            "architectures": ["Qwen3ForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 100,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 64,
        },
    ),
    "wide-heads-biased": (
        16,
        {
            "hidden_size": 320,
            "intermediate_size": 767,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 128,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "large-blocks-tied": (128, {"hidden_size": 300, "tie_word_embeddings": True}),
    "mistral-narrow-window": (
        16,
        {"architectures": ["MistralForCausalLM"], "sliding_window": 30, "num_key_value_heads": 6},
    ),
    "qwen2-upper-layer-slides": (
        24,
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 75,
            "max_window_layers": 1,
            "rope_scaling": {"type": "yarn", "factor": 4.0},
        },
    ),
    "qwen3-one-window": (
        16,
        {
            "architectures": ["Qwen3ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 1,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_scaling": {"type": "dynamic", "factor": 4.0},
        },
    ),
    "gpt2": (16, {"n_inner": 203}),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Schedules:
    """Random schedules of a few sequences over two pools, as two workers would have them."""

    def __init__(self, name: str, path: Path) -> None:
        block_size, overrides = MODELS[name]
        tiny = TINY_GPT2 if name.startswith("gpt2") else TINY
        checkpoint = write_checkpoint(path, {**tiny, **overrides})
        self.pools = [
            TinyRunner(checkpoint, num_blocks=NUM_BLOCKS, block_size=block_size) for _ in range(2)
        ]
        self.block_size = block_size
        self.numbers = random.Random(name)  # noqa: S311
        self.sequences = self._prompts(checkpoint.config.vocab_size)
        self.alone = [self.pools[0].alone(token_ids) for token_ids in self.sequences]

    def _prompts(self, vocab_size: int) -> list[list[int]]:
        """Every length once, then three that share long prefixes with an earlier one."""
        prompts = [
            [self.numbers.randrange(vocab_size) for _ in range(length)] for length in LENGTHS
        ]
        for shared in (64, 129, 160):
            tail = [self.numbers.randrange(vocab_size) for _ in range(20)]
            prompts.append(prompts[-1][:shared] + tail)
        return prompts

    def run(self) -> int:
        """One schedule; the number of rows whose logits differ from the sequence's alone."""
        for tiny in self.pools:
            tiny.pool.fill_(torch.nan)
        self.free = [self.numbers.sample(range(NUM_BLOCKS), NUM_BLOCKS) for _ in self.pools]
        members = self.numbers.sample(range(len(self.sequences)), 5)
        self.at = dict.fromkeys(members, 0)
        self.done = dict.fromkeys(members, 0)
        self.tables = {
            index: self._take(0, num_blocks_for(len(self.sequences[index]), self.block_size))
            for index in members
        }
        num_wrong = 0
        while any(self.done[index] < len(self.sequences[index]) for index in members):
            self._reuse_prefix(members)
            self._hand_over(members)
            for pool in (0, 1):
                num_wrong += self._step(pool)
        return num_wrong

    def _step(self, pool: int) -> int:
        """Some of the pool's sequences advance by random chunks."""
        steps, members = [], []
        for index, at in self.at.items():
            left = len(self.sequences[index]) - self.done[index]
            if at == pool and left and self.numbers.random() < 0.7:
                chunk = min(left, self.numbers.choice((1, 1, 1, 2, 3, 7, 16, 64, 100, 200)))
                start = self.done[index]
                steps.append(Rows(self.sequences[index], start, start + chunk, self.tables[index]))
                members.append(index)
                self.done[index] += chunk
        if not steps:
            return 0
        logits = self.pools[pool].run(steps, all_rows=True)
        first, num_wrong = 0, 0
        for index, item in zip(members, steps, strict=True):
            rows = logits[first : first + item.end - item.start]
            same = (rows == self.alone[index][item.start : item.end]).all(dim=-1)
            num_wrong += int((~same).sum())
            first += item.end - item.start
        return num_wrong

    def _reuse_prefix(self, members: list[int]) -> None:
        """A sequence that has not begun takes the computed full blocks of one it begins like."""
        for index in members:
            for other in members:
                if self.done[index] or other == index or self.at[other] != self.at[index]:
                    continue
                common = _common_prefix(self.sequences[index], self.sequences[other])
                usable = min(common, self.done[other], len(self.sequences[index]) - 1)
                num_blocks = usable // self.block_size
                self.tables[index][:num_blocks] = self.tables[other][:num_blocks]
                self.done[index] = num_blocks * self.block_size

    def _hand_over(self, members: list[int]) -> None:
        """Sometimes a sequence's blocks are copied to other ids of the other pool."""
        for index in members:
            if self.at[index] == 0 and self.numbers.random() < 0.15:
                target = self._take(1, len(self.tables[index]))
                self.pools[1].pool[target] = self.pools[0].pool[self.tables[index]]
                self.tables[index] = target
                self.at[index] = 1

    def _take(self, pool: int, num_blocks: int) -> list[int]:
        return [self.free[pool].pop() for _ in range(num_blocks)]


def _common_prefix(one: list[int], other: list[int]) -> int:
    for length, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return length
    return min(len(one), len(other))


@pytest.mark.parametrize("name", MODELS)
def test_random_schedules_give_the_bits_of_the_sequence_alone(name: str, tmp_path: Path) -> None:
    schedules = Schedules(name, tmp_path)
    assert all(torch.isfinite(logits).all() for logits in schedules.alone)
    assert sum(schedules.run() for _ in range(NUM_SCHEDULES)) == 0


def test_a_product_of_two_rows_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = Schedules("grouped", tmp_path)
    monkeypatch.setattr(layers, "MIN_ROWS", 2)
    assert any(schedules.run() for _ in range(NUM_SCHEDULES))


def test_a_score_product_of_one_row_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = Schedules("wide-heads-biased", tmp_path)
    monkeypatch.setattr(attention, "min_rows", lambda head_dim: 1)
    assert any(schedules.run() for _ in range(NUM_SCHEDULES))


def test_the_start_up_check_sees_a_product_that_depends_on_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.randn(256, 320, generator=torch.Generator().manual_seed(0))
    assert layers.row_invariant(layers.Linear(weight))
    monkeypatch.setattr(layers, "MIN_ROWS", 2)
    assert not layers.row_invariant(layers.Linear(weight))
