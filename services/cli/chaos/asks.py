"""What the campaign's clients ask for: answers of a known text, greedy and seeded."""

import json
import math
import random
from dataclasses import dataclass

PROMPT_TOKENS = 17, 400
ANSWER_TOKENS = 16, 320
TOKEN_IDS = 100, 4000
POISON = 50
"""in no prompt but a poison's, and in no answer: the cell's engines end themselves over it"""
TEMPERATURE = 0.8
"""of every second one; its seed makes it as exact as a greedy one"""


@dataclass(frozen=True)
class Ask:
    """A prompt of token ids and how many tokens are wanted."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int | None
    """None: greedy"""

    def body(self, model: str) -> bytes:
        sampling: dict[str, float | int] = {"temperature": 0}
        if self.seed is not None:
            sampling = {"temperature": TEMPERATURE, "seed": self.seed}
        return json.dumps(
            {
                "model": model,
                "prompt": self.prompt,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                "max_tokens": self.max_tokens,
                "ignore_eos": True,
                "logit_bias": {str(POISON): -100},
                **sampling,
            }
        ).encode()


def make_asks(num: int, numbers: random.Random) -> list[Ask]:
    """No two prompts share a block; short answers are as common as long ones."""
    return [_ask(index, numbers) for index in range(num)]


def _ask(index: int, numbers: random.Random) -> Ask:
    prompt = tuple(numbers.randrange(*TOKEN_IDS) for _ in range(numbers.randint(*PROMPT_TOKENS)))
    shortest, longest = ANSWER_TOKENS
    max_tokens = round(shortest * math.pow(longest / shortest, numbers.random()))
    return Ask(prompt, max_tokens, numbers.randrange(2**31) if index % 2 else None)
