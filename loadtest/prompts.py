"""What the users ask: conversations over shared system prompts, long documents, bursts of code.

Seeded, so that a run can be repeated. The words are plain English of no particular meaning:
what a load test needs of a text is its length, and how much of it others share.
"""

import random
from collections.abc import Iterator

from services.cli.bench.serve.prompts import safe_ids

Message = dict[str, str]

NUM_SYSTEM_PROMPTS = 8
WORDS_PER_TOKEN = 0.7
"""a cautious guess for English; prompts are sized with it, usage says what they really were"""
IDS = safe_ids(4096)
"""in the vocabulary of the demo model, and of any larger one"""
SUBJECTS = "the harbour|our market|a library|the railway|this garden|her workshop|the old mill"
VERBS = "opens before|depends on|was built next to|pays for|looks after|has outgrown|remembers"
OBJECTS = "the morning ferry|a quiet street|every visitor|the winter stores|two small bridges"
TOPICS = "a bakery|a school|a hospital|a bank|a museum|a farm|a theatre|an observatory"
TASKS = "sorts a list|parses a date|counts words|joins two tables|retries a call|draws a tree"


class PromptWriter:
    """Everything one simulated user types."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 -- a repeatable load, no secret

    def system_prompt(self, num_tokens: int) -> Message:
        """One of a few that all users share, so that its KV is in the prefix cache."""
        number = self._random.randrange(NUM_SYSTEM_PROMPTS)
        topic = TOPICS.split("|")[number]
        rules = " ".join(_sentences(random.Random(number), num_tokens))  # noqa: S311
        return {"role": "system", "content": f"You answer the visitors of {topic}. {rules}"}

    def question(self) -> Message:
        """A short turn that nobody else has."""
        return {"role": "user", "content": f"{self._sentence()} What follows from that?"}

    def document(self, num_tokens: int) -> Message:
        """A long text to be summarised, different for each request."""
        text = " ".join(_sentences(self._random, num_tokens))
        return {"role": "user", "content": f"Summarise in three sentences:\n{text}"}

    def code_task(self) -> Message:
        task = self._random.choice(TASKS.split("|"))
        wish = f"Write a Python function that {task}. {self._sentence()}"
        return {"role": "user", "content": wish}

    def num_turns(self) -> int:
        return self._random.randint(3, 6)

    def burst_size(self) -> int:
        return self._random.randint(3, 8)

    def seed(self) -> int:
        """For the server's draws."""
        return self._random.randrange(2**31)

    def _sentence(self) -> str:
        return next(_sentences(self._random, 1))


class TokenWriter:
    """Prompts of token ids: all writers of a load begin with the same, and go on each with its
    own."""

    def __init__(self, load_seed: int, seed: int, num_shared: int) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._shared = random.Random(load_seed).choices(IDS, k=num_shared)  # noqa: S311

    def prompt(self, num_own: int) -> list[int]:
        """What all share, and `num_own` ids that nobody else has."""
        return self._shared + self._random.choices(IDS, k=num_own)


def trimmed(messages: list[Message], num_tokens: int, limit: int) -> list[Message]:
    """The conversation, `num_tokens` long, without its oldest turn once it has come near the
    model's context. The system prompt stays: it is what the turns share."""
    if num_tokens < limit or len(messages) < 4:
        return messages
    return [messages[0], *messages[3:]]


def _sentences(numbers: random.Random, num_tokens: int) -> Iterator[str]:
    """Enough for `num_tokens` tokens, at least one."""
    left = num_tokens * WORDS_PER_TOKEN
    while True:
        parts = (numbers.choice(words.split("|")) for words in (SUBJECTS, VERBS, OBJECTS))
        sentence = " ".join(parts).capitalize() + f" number {numbers.randrange(100)}."
        yield sentence
        left -= len(sentence.split())
        if left <= 0:
            return
