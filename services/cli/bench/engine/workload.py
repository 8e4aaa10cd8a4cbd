"""Prompts of random token ids and how many tokens are wanted for each."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

MIXED_SEED = 0
MIXED_MIN, MIXED_IDS = 100, 10_000
DRAINED = 8


@dataclass(frozen=True)
class Request:
    """One sequence; it goes on until it has `num_output` tokens, whatever they are."""

    token_ids: tuple[int, ...]
    num_output: int


@dataclass(frozen=True)
class Workload:
    """Requests that begin at the same moment."""

    requests: tuple[Request, ...]
    temperature: float = 0.0
    """0 is greedy"""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output for request in self.requests)

    @property
    def lengths(self) -> list[tuple[int, int]]:
        return [(len(request.token_ids), request.num_output) for request in self.requests]

    def shortened(self, num_output: int) -> "Workload":
        """The same prompts with fewer tokens wanted."""
        requests = tuple(
            Request(one.token_ids, min(one.num_output, num_output)) for one in self.requests
        )
        return Workload(requests, self.temperature)


class RandomPrompts:
    """Draws prompts that were not there before; the same ones in every run of the program."""

    def __init__(self, vocab_size: int, seed: int = 1) -> None:
        self._vocab = range(vocab_size)
        self._random = random.Random(seed)  # noqa: S311 (nothing secret)

    def equal(self, num_sequences: int, num_prompt: int, num_output: int) -> Workload:
        """All of the same lengths."""
        requests = (
            Request(tuple(self._random.choices(self._vocab, k=num_prompt)), num_output)
            for _ in range(num_sequences)
        )
        return Workload(tuple(requests))

    def draining(self, num_sequences: int, num_prompt: int, num_output: int) -> Workload:
        """Of the same prompt length; after `num_output` steps they end eight at a time and the
        last eight one by one, so that a batch of every size that engines capture comes by."""
        num_groups = num_sequences // DRAINED
        ends = [
            num_groups + DRAINED - index if index < DRAINED else num_groups - index // DRAINED
            for index in range(num_sequences)
        ]
        equal = self.equal(num_sequences, num_prompt, num_output)
        requests = (
            Request(one.token_ids, num_output + end)
            for one, end in zip(equal.requests, ends, strict=True)
        )
        return Workload(tuple(requests))


def mixed_workload(num_sequences: int, longest: int, vocab_size: int) -> Workload:
    """Prompts and answers of 100 to `longest` tokens at temperature 0.6, drawn in the order that
    nano-vllm's benchmark draws them: 256 of up to 1024 are 142,827 and 133,966 tokens."""
    source = random.Random(MIXED_SEED)  # noqa: S311 (nothing secret)
    least, last_id = min(MIXED_MIN, longest), min(MIXED_IDS, vocab_size - 1)
    prompts = [
        tuple(source.randint(0, last_id) for _ in range(source.randint(least, longest)))
        for _ in range(num_sequences)
    ]
    answers = [source.randint(least, longest) for _ in range(num_sequences)]
    requests = (Request(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True))
    return Workload(tuple(requests), temperature=0.6)


def repeats(workloads: Sequence[Workload], block_size: int) -> int:
    """Prompts that begin as another one did, in any of the workloads; as far as a prefix cache
    with such blocks would notice."""
    starts = [one.token_ids[:block_size] for work in workloads for one in work.requests]
    return len(starts) - len(set(starts))
