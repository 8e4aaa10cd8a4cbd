"""What a sampler answers: token ids on the logits' device at once, on the host when waited for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from shared.engine.sampling.sample_row import SampleRow
from shared.protocol import TokenLogprobs


class SampledToken(NamedTuple):
    """A chosen token, on the host."""

    token_id: int
    logprobs: TokenLogprobs | None


class SampledTokens(Protocol):
    """The tokens of one call, one per row. Whatever the device still works on for it is kept
    alive by it."""

    @property
    def device_ids(self) -> torch.Tensor:
        """i64[R] on the logits' device, for whatever follows on the stream that sampled. The
        sampler writes there again four calls later."""

    def ready(self) -> bool:
        """wait() would not block."""

    def wait(self) -> list[SampledToken]:
        """Block until the ids, and the logprobs asked for, are on the host."""


class TokenSampler(Protocol):
    """Chooses the next token of each row."""

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> SampledTokens:
        """One token per row of logits, [R, V] of a float type; logits stay as they are."""


@dataclass(frozen=True)
class HostTokens:
    """Tokens that are on the host already."""

    device_ids: torch.Tensor
    tokens: list[SampledToken]

    def ready(self) -> bool:
        return True

    def wait(self) -> list[SampledToken]:
        return self.tokens
