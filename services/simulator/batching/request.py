"""One request of a simulated device, and the moments of its tokens."""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """Lengths in tokens, moments in seconds of the timeline."""

    number: int
    at_s: float
    """when it arrives"""
    num_prompt: int
    num_output: int
    tokens_s: list[float] = field(default_factory=list)
    """when each token of its answer was there"""

    @property
    def is_answered(self) -> bool:
        return len(self.tokens_s) == self.num_output

    @property
    def num_rows(self) -> int:
        """Tokens that must be computed for it: the last of its answer is never fed back."""
        return self.num_prompt + self.num_output - 1

    @property
    def wait_s(self) -> float:
        """For its first token."""
        return self.tokens_s[0] - self.at_s

    @property
    def latency_s(self) -> float:
        """From its arrival to its last token."""
        return self.tokens_s[-1] - self.at_s
