"""Which part of a model a rank holds.

Attention is split by heads, so that a rank needs the keys and values of its own heads only; where
there are fewer KV heads than ranks, several ranks hold the same one. The MLP is split by columns,
the product with the vocabulary by its rows, the last rank's padded with zeros. Embedding and norms
are whole on every rank: they are read by row or cost nothing.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from shared.errors import ModelError
from shared.kv.share import heads_of_rank
from shared.model.config import ModelConfig


class Part(NamedTuple):
    """[start, stop) of a dimension of `total`."""

    total: int
    start: int
    stop: int

    @property
    def width(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        return self.width == self.total

    @property
    def span(self) -> slice:
        return slice(self.start, self.stop)


def part_of(dimension: "int | Part") -> Part:
    """A number stands for the whole of a dimension."""
    return dimension if isinstance(dimension, Part) else Part(dimension, 0, dimension)


@dataclass(frozen=True)
class Shard:
    """The part of `rank` of a model on `size` ranks. ModelError if it cannot be split so."""

    model: ModelConfig
    """the whole model's"""
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size
        for number, noun in (
            (self.model.num_heads, "attention heads"),
            (self.model.intermediate_size, "MLP columns"),
        ):
            if number % self.size:
                raise ModelError(f"{number} {noun} cannot be split evenly over {self.size} ranks")
        kv_heads = self.model.num_kv_heads
        if kv_heads % self.size and self.size % kv_heads:
            raise ModelError(
                f"{kv_heads} KV heads can be neither split evenly over {self.size} ranks "
                "nor held by equally many ranks each"
            )
        if self.model.vocab_size <= (self.size - 1) * self.vocabulary_width:
            raise ModelError(f"{self.model.vocab_size} tokens are too few for {self.size} ranks")

    @property
    def config(self) -> ModelConfig:
        """What the rank computes, as if it were a model of its own."""
        model = self.model
        return replace(
            model,
            num_heads=model.num_heads // self.size,
            num_kv_heads=self.keys.width // model.head_dim,
            intermediate_size=self.columns.width,
        )

    @property
    def queries(self) -> Part:
        """Outputs of the projection to queries, and inputs of the one after attention."""
        return self._equal(self.model.num_heads, self.rank, self.size, self.model.head_dim)

    @property
    def keys(self) -> Part:
        """Outputs of the projection to keys, and of the one to values."""
        total, width = self.model.num_kv_heads, self.model.head_dim
        heads = heads_of_rank(total, self.rank, self.size)
        return Part(total * width, heads.start * width, heads.stop * width)

    @property
    def columns(self) -> Part:
        """Outputs of each projection into the MLP, and inputs of the one out of it."""
        return self._equal(self.model.intermediate_size, self.rank, self.size)

    @property
    def vocabulary(self) -> Part:
        """Rows of the vocabulary that exist; a rank computes `vocabulary_width`."""
        start = self.rank * self.vocabulary_width
        stop = min(start + self.vocabulary_width, self.model.vocab_size)
        return Part(self.model.vocab_size, start, stop)

    @property
    def vocabulary_width(self) -> int:
        """Logits a rank computes, the same for all ranks."""
        return -(-self.model.vocab_size // self.size)

    @staticmethod
    def _equal(count: int, number: int, num_parts: int, width: int = 1) -> Part:
        """Part `number` of `count` items of `width` each."""
        share = count // num_parts * width
        return Part(count * width, number * share, (number + 1) * share)
