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
    tells_margins: bool = False
    """the answer says how likely the second likeliest token was at each step"""

    def body(self, model: str) -> bytes:
        sampling: dict[str, float | int] = {"temperature": 0}
        if self.seed is not None:
            sampling = {"temperature": TEMPERATURE, "seed": self.seed}
        if self.tells_margins:
            sampling["logprobs"] = 2
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


def make_asks(num: int, numbers: random.Random, *, exact: bool = True) -> list[Ask]:
    """No two prompts share a block; short answers are as common as long ones. `exact`: what is
    computed together changes no answer; else all are greedy, and tell their margins."""
    return [_ask(index, numbers, exact=exact) for index in range(num)]


def drawn_prompt(length: int, numbers: random.Random) -> tuple[int, ...]:
    return tuple(numbers.randrange(*TOKEN_IDS) for _ in range(length))


def drawn_between(least: float, most: float, numbers: random.Random) -> float:
    """Each doubling is as likely as the next."""
    return least * math.pow(most / least, numbers.random())


def _ask(index: int, numbers: random.Random, *, exact: bool) -> Ask:
    prompt = drawn_prompt(numbers.randint(*PROMPT_TOKENS), numbers)
    max_tokens = round(drawn_between(*ANSWER_TOKENS, numbers))
    if not exact:
        return Ask(prompt, max_tokens, None, tells_margins=True)
    return Ask(prompt, max_tokens, numbers.randrange(2**31) if index % 2 else None)
