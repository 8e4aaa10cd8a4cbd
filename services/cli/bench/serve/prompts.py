"""Prompts: token ids as JSON fragments, or words for a chat.

Everything follows from the seed: the same run asks the same. A prompt is kept as the JSON that
goes into the request's body, so that a send costs no encoding.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.cli.bench.serve.trace_file import BLOCK_TOKENS
from shared.errors import SettingsError

MIN_VOCAB = 64
WORDS = (
    *("river", "stone", "lamp", "bread", "cloud", "door", "green", "seven", "night", "paper"),
    *("under", "little", "walk", "blue", "horse", "winter", "table", "glass", "north", "music"),
    *("light", "small", "garden", "open", "silver", "train", "water", "early", "hand", "road"),
)


class PromptSource(Protocol):
    """Makes prompts of about `num_tokens` tokens."""

    def unique(self, num_tokens: int) -> bytes:
        """JSON of a prompt that begins with the shared prefix, if any, and is new after it."""

    def cold(self, num_tokens: int) -> bytes:
        """JSON of a prompt that shares nothing with any other."""

    def of_blocks(self, hash_ids: Sequence[int], num_tokens: int) -> bytes:
        """JSON of a prompt whose blocks of 512 tokens follow from `hash_ids`."""


def safe_ids(num_vocab: int) -> range:
    """Ids that are ordinary text in any common tokenizer: special ids and single bytes stand at
    either end of a vocabulary."""
    if num_vocab < MIN_VOCAB:
        raise SettingsError(f"--vocab: at least {MIN_VOCAB}")
    return range(min(1000, num_vocab // 8), num_vocab - num_vocab // 16)


class TokenPrompts:
    """Random token ids out of `ids`."""

    def __init__(self, ids: Sequence[int], seed: int, num_shared: int = 0) -> None:
        self._ids = ids
        self._seed = seed
        self._rng = random.Random(f"{seed} prompts")  # noqa: S311 a workload, no secret
        self._shared = _numbers(random.Random(f"{seed} shared"), ids, num_shared)  # noqa: S311
        self._num_shared = num_shared
        self._blocks: dict[int, list[bytes]] = {}

    def unique(self, num_tokens: int) -> bytes:
        own = _numbers(self._rng, self._ids, max(num_tokens - self._num_shared, 0))
        return _array([*self._shared[:num_tokens], *own])

    def cold(self, num_tokens: int) -> bytes:
        return _array(_numbers(self._rng, self._ids, num_tokens))

    def of_blocks(self, hash_ids: Sequence[int], num_tokens: int) -> bytes:
        if not hash_ids:
            return self.unique(num_tokens)
        numbers: list[bytes] = []
        for hash_id in hash_ids:
            numbers += self._block(hash_id)
        return _array(numbers[:num_tokens])

    def _block(self, hash_id: int) -> list[bytes]:
        block = self._blocks.get(hash_id)
        if block is None:
            rng = random.Random(f"{self._seed} block {hash_id}")  # noqa: S311
            block = self._blocks[hash_id] = _numbers(rng, self._ids, BLOCK_TOKENS)
        return block


@dataclass(frozen=True)
class WordCost:
    """What a chat of n words costs in tokens: measured, since only the endpoint knows."""

    tokens_per_word: float
    tokens_around: float
    """the template's own"""

    def num_words(self, num_tokens: int) -> int:
        return max(1, round((num_tokens - self.tokens_around) / self.tokens_per_word))


class ChatPrompts:
    """One user message of random words; `messages` as JSON."""

    def __init__(self, cost: WordCost, seed: int, num_shared: int = 0) -> None:
        self._cost = cost
        self._seed = seed
        self._rng = random.Random(f"{seed} prompts")  # noqa: S311
        shared = random.Random(f"{seed} shared")  # noqa: S311
        self._shared = shared.choices(WORDS, k=cost.num_words(num_shared)) if num_shared else []

    def unique(self, num_tokens: int) -> bytes:
        num_words = self._cost.num_words(num_tokens)
        own = self._rng.choices(WORDS, k=max(num_words - len(self._shared), 0))
        return message(" ".join([*self._shared[:num_words], *own]))

    def cold(self, num_tokens: int) -> bytes:
        return message(" ".join(self._rng.choices(WORDS, k=self._cost.num_words(num_tokens))))

    def of_blocks(self, hash_ids: Sequence[int], num_tokens: int) -> bytes:
        """Blocks are of about 512 tokens here, the first one includes the template's."""
        if not hash_ids:
            return self.unique(num_tokens)
        per_block = max(1, round(BLOCK_TOKENS / self._cost.tokens_per_word))
        words: list[str] = []
        for hash_id in hash_ids:
            rng = random.Random(f"{self._seed} block {hash_id}")  # noqa: S311
            words += rng.choices(WORDS, k=per_block)
        return message(" ".join(words[: self._cost.num_words(num_tokens)]))


def message(text: str) -> bytes:
    """JSON of `messages` with one question."""
    return json.dumps([{"role": "user", "content": text}]).encode()


def _numbers(rng: random.Random, ids: Sequence[int], count: int) -> list[bytes]:
    return [b"%d" % token_id for token_id in rng.choices(ids, k=count)]


def _array(numbers: list[bytes]) -> bytes:
    return b"[" + b",".join(numbers) + b"]"
