"""What was measured of one request. All times are seconds of one monotonic clock."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

CountedFrom = Literal["continuous", "total", "chunks"]
"""how tokens are known: from the usage of every chunk, of the last one, or by counting chunks"""
REFUSED = "http_429"
"""the kind of error that is a refusal"""


@dataclass
class RequestSample:
    """One request: filled in while it runs, read when it has ended."""

    index: int
    scheduled_s: float
    """when it was to be sent; in a closed loop, when its slot was free"""
    num_input: int
    num_output: int
    """tokens wanted"""
    started_s: float = 0.0
    """when the client turned to it"""
    sent_s: float = 0.0
    """when its last byte was written; connecting is over by then"""
    end_s: float = 0.0
    """when the answer was complete or given up"""
    status: int = 0
    error: str = ""
    """kind of failure; empty when the answer is whole"""
    error_text: str = ""
    chunk_times_s: list[float] = field(default_factory=list)
    """of chunks that showed tokens, as they arrived"""
    chunk_tokens: list[int] = field(default_factory=list)
    """tokens in each, as far as the endpoint says; else 1"""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int = 0
    counted_from: CountedFrom = "chunks"
    without_text: bool = False
    """nothing but its finish showed its tokens: the first one's time is unknown"""
    request_id: str = ""
    gpu_ms: float | None = None
    """GPU time that it took, of a receipt that tells it"""
    saved_gpu_ms: float | None = None
    """that the prefix cache saved it"""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def refused(self) -> bool:
        """It was told to come later; that is no failure."""
        return self.error == REFUSED

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return sum(self.chunk_tokens)

    @property
    def input_tokens(self) -> int:
        """As the endpoint counted them, else as wanted."""
        return self.num_input if self.prompt_tokens is None else self.prompt_tokens

    @property
    def send_lag_s(self) -> float:
        """The client's own lateness."""
        return self.started_s - self.scheduled_s

    @property
    def ttft_s(self) -> float:
        """From the scheduled time: what a user felt, also when the client was late."""
        return self.chunk_times_s[0] - self.scheduled_s

    @property
    def ttft_sent_s(self) -> float:
        return self.chunk_times_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        """Scheduled time to the last token."""
        return self.chunk_times_s[-1] - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first chunk; None for answers of one chunk."""
        if len(self.chunk_times_s) < 2:
            return None
        first = self.chunk_tokens[0] if self.counted_from == "continuous" else 1
        num_later = self.num_tokens - first
        if num_later < 1:
            return None
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / num_later

    @property
    def gaps_s(self) -> list[float]:
        """Between consecutive chunks."""
        return [after - before for before, after in pairwise(self.chunk_times_s)]

    @property
    def spread_gaps_s(self) -> list[float]:
        """One gap per token: a chunk's gap shared evenly by its tokens."""
        pairs = zip(self.gaps_s, self.chunk_tokens[1:], strict=True)
        return [gap / max(tokens, 1) for gap, tokens in pairs for _ in range(max(tokens, 1))]

    @property
    def tokens_per_chunk(self) -> float:
        return self.num_tokens / len(self.chunk_times_s) if self.chunk_times_s else 0.0

    def record(self, start_s: float) -> dict[str, Any]:
        """Its JSON line; times count from the start of the run, in ms."""
        line: dict[str, Any] = {
            "kind": "request",
            "index": self.index,
            "id": self.request_id,
            "scheduled_ms": _ms(self.scheduled_s - start_s),
            "send_lag_ms": _ms(self.send_lag_s),
            "sent_ms": _ms(self.sent_s - start_s) if self.sent_s else None,
            "end_ms": _ms(self.end_s - start_s),
            "status": self.status,
            "error": self.error or None,
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.num_tokens,
        }
        if self.error_text:
            line["error_text"] = self.error_text
        if self.gpu_ms is not None:
            line |= {"gpu_ms": self.gpu_ms, "saved_gpu_ms": self.saved_gpu_ms}
        if self.chunk_times_s:
            tpot_s = self.tpot_s
            line |= {
                "ttft_ms": _ms(self.ttft_s),
                "ttft_from_send_ms": _ms(self.ttft_sent_s),
                "tpot_ms": None if tpot_s is None else _ms(tpot_s),
                "e2e_ms": _ms(self.e2e_s),
                "gaps_ms": [_ms(gap) for gap in self.gaps_s],
                "chunk_tokens": self.chunk_tokens,
                "tokens_known_from": self.counted_from,
            }
        return line


def _ms(seconds_s: float) -> float:
    return round(seconds_s * 1e3, 3)
