"""When the choices of one HTTP request may be submitted. Pure: indexes in, indexes out.

Choices of one prompt share its KV through the prefix cache, so that it is computed once: the
first choice goes ahead, the others follow when its first token shows that the prompt is in the
cache of its worker. A prompt without a full block has nothing to share, nor has any without a
prefix cache.

A worker counts a waiting prompt by its length, cached or not, and refuses what is too much. So
only as many choices of a prompt wait for their first token together as fit one step.
"""

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from shared.settings.groups import EngineSettings


@dataclass(frozen=True)
class PromptSharing:
    """What choices of one prompt have in common on a worker."""

    min_tokens: int
    """prompts from this length on share KV"""
    step_tokens: int
    """prompt tokens that may wait there together"""

    @classmethod
    def of(cls, engine: EngineSettings, block_size: int, device_type: str) -> "PromptSharing":
        never = sys.maxsize
        min_tokens = block_size if engine.prefix_cache else never
        return cls(min_tokens, engine.tokens_per_step(device_type))


class SubmitOrder:
    """Choice `index` = prompt * n + choice of that prompt. Every index is given out once."""

    def __init__(self, prompt_lengths: Sequence[int], n: int, sharing: PromptSharing) -> None:
        self._n = n
        self._lengths = tuple(prompt_lengths)
        self._step_tokens = sharing.step_tokens
        self._following: dict[int, deque[int]] = {}
        """prompt -> its choices that still wait to be submitted"""
        self._opening: list[int] = []
        for prompt, length in enumerate(prompt_lengths):
            first, *others = range(prompt * n, (prompt + 1) * n)
            self._opening.append(first)
            if length < sharing.min_tokens:
                self._opening += others
            elif others:
                self._following[prompt] = deque(others)

    def opening(self) -> list[int]:
        """Those that nothing holds up, in order."""
        return self._opening

    def begun(self, index: int) -> list[int]:
        """The first token of this choice has arrived: those whose turn it is now."""
        prompt, choice = divmod(index, self._n)
        waiting = self._following.get(prompt)
        if not waiting:
            return []
        num_due = 1 if choice else max(1, self._step_tokens // self._lengths[prompt])
        return [waiting.popleft() for _ in range(min(num_due, len(waiting)))]

    def leader(self, index: int) -> int:
        """The first choice of the same prompt."""
        return index - index % self._n
