"""The order that the articles print for a queue of prompts (prefix, then length, then priority)
next to ours (priority, then length with patience, then arrival), on one worker.

Guarded against: an order under which interactive prompts wait for bulk work, and one under which
a prompt that nobody else shares a prefix with waits for as long as others come.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.engine.scheduling.prompt_order import PromptOrder, PromptTurn
from shared.protocol import DEFAULT_PRIORITY
from tests.support.measured import Measured

STEP_TOKENS, TOKEN_S = 2048, 6e-5
NUM_PROMPTS, LOAD = 20_000, 0.9
BULK = 6
CACHED = 0.75
"""of a prompt, where the cache has its prefix"""


@dataclass(eq=False)
class Waiting:
    """A prompt in the line of a worker."""

    at_s: float
    priority: int
    num_tokens: int
    num_cached: int
    arrival: int
    turn: PromptTurn = field(default_factory=PromptTurn)

    @property
    def takes_s(self) -> float:
        return (self.num_tokens - self.num_cached) * TOKEN_S


Key = Callable[[PromptOrder, Waiting], tuple[float, ...]]


def ours(order: PromptOrder, prompt: Waiting) -> tuple[float, ...]:
    return prompt.priority, order.bucket_of(prompt.turn), prompt.arrival


def printed(_: PromptOrder, prompt: Waiting) -> tuple[float, ...]:
    return -prompt.num_cached, prompt.turn.bucket, prompt.priority, prompt.arrival


def prompts() -> list[Waiting]:
    """Half of them are bulk work, and half find a prefix."""
    dice, found = random.Random(1), []  # noqa: S311
    for arrival in range(NUM_PROMPTS):
        num_tokens = round(10 ** dice.uniform(2, 4))
        num_cached = round(CACHED * num_tokens) if dice.random() < 0.5 else 0
        priority = dice.choice((DEFAULT_PRIORITY, BULK))
        found.append(Waiting(0.0, priority, num_tokens, num_cached, arrival))
    mean_s = sum(prompt.takes_s for prompt in found) / NUM_PROMPTS
    at_s = 0.0
    for prompt in found:
        prompt.at_s = at_s = at_s + dice.expovariate(LOAD / mean_s)
    return found


def waits_s(key: Key) -> dict[Waiting, float]:
    """Of each prompt, from its arrival until the worker begins with it."""
    order, now_s = PromptOrder(STEP_TOKENS), 0.0
    line: list[Waiting] = []
    found: dict[Waiting, float] = {}
    coming = prompts()[::-1]
    while coming or line:
        if not line:
            now_s = max(now_s, coming[-1].at_s)
        while coming and coming[-1].at_s <= now_s:
            prompt = coming.pop()
            prompt.turn = order.arrive(prompt.num_tokens - prompt.num_cached)
            line.append(prompt)
        first = min(line, key=lambda prompt: key(order, prompt))
        line.remove(first)
        found[first] = now_s - first.at_s
        now_s += first.takes_s
    return found


def p99_s(waits: Sequence[float]) -> float:
    return sorted(waits)[int(0.99 * len(waits))]


def interactive(found: dict[Waiting, float]) -> list[float]:
    return [wait for prompt, wait in found.items() if prompt.priority == DEFAULT_PRIORITY]


def test_the_printed_order_makes_interactive_prompts_wait_for_bulk_work(
    measured: Measured,
) -> None:
    by_printed, by_ours = waits_s(printed), waits_s(ours)
    assert len(by_printed) == len(by_ours) == NUM_PROMPTS
    slower = p99_s(interactive(by_printed)) / p99_s(interactive(by_ours))
    measured.note(f"interactive wait, p99: {p99_s(interactive(by_ours)):.2f} s by ours")
    measured.at_least("by the printed order", slower, 3.0, "times as long")
    longest = max(interactive(by_printed)) / max(interactive(by_ours))
    measured.at_least("the longest wait by the printed order", longest, 3.0, "times as long")
