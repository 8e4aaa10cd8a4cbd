"""What a sampler answers: token ids on the logits' device at once, on the host when waited for."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from shared.engine.sample_row import SampleRow
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


class HostTokens(Sequence[SampledToken]):
    """Tokens that are on the host already."""

    def __init__(self, device_ids: torch.Tensor, tokens: list[SampledToken]) -> None:
        self.device_ids = device_ids
        self._tokens = tokens

    def ready(self) -> bool:
        return True

    def wait(self) -> list[SampledToken]:
        return self._tokens

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._tokens[index]

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[SampledToken]:
        return iter(self._tokens)

    def __eq__(self, other: object) -> bool:
        return self._tokens == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
