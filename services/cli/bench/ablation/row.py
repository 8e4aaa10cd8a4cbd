"""A row of the table, and the four factors that are read off several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.cli.bench.ablation.ways import Tokens

NOT_MULTIPLIED = (
    "The factors are not multiplied: without a hit the cache's is 0, and so would be the product, "
    "though nothing would be slower than without a cache."
)


@dataclass(frozen=True)
class Row:
    """What one way came to."""

    name: str
    token_ids: tuple[Tokens, ...]
    elapsed_s: float
    gap_s: float
    """from a token of an answer to its next, on average"""
    kept_bytes: int
    """of KV, at most, from one step to the next"""
    hit_share: float
    """of the prompt tokens, those that the prefix cache had"""
    filled_share: float | None
    """of the KV positions in use, those with a token"""

    @property
    def tokens_a_second(self) -> float:
        return sum(map(len, self.token_ids)) / self.elapsed_s


@dataclass(frozen=True)
class Factor:
    """One of base, parallel, cache and memory."""

    name: str
    value: float
    unit: str
    text: str

    def record(self) -> dict[str, Any]:
        """Its JSON line."""
        value = round(self.value, 4)
        return {"kind": "factor", "name": self.name, "value": value, "unit": self.unit}


def factors(rows: Sequence[Row], width: int) -> list[Factor]:
    """`rows`: those of all ways, in the order of the table; `width`: sequences at once."""
    none, _, alone, both, cached, *_ = rows
    gain = both.tokens_a_second / alone.tokens_a_second
    return [
        Factor("base", none.tokens_a_second, "tok/s", "one sequence at a time, without KV"),
        Factor(
            "parallel",
            gain / width,
            "",
            f"{width} sequences at once are {gain:.2f} times as fast as one, of {width} possible",
        ),
        Factor("cache", cached.hit_share, "", "of the prompt tokens, those in the prefix cache"),
        Factor(
            "memory",
            both.filled_share or 0.0,
            "",
            "of the KV positions in use, those that have a token; the rest is the end of a block",
        ),
    ]


def differing(rows: Sequence[Row]) -> list[str]:
    """Where a row's tokens are not those of the first, in words."""
    first, *others = rows
    return [text for other in others if (text := _first_difference(first, other))]


def _first_difference(one: Row, other: Row) -> str:
    if len(one.token_ids) != len(other.token_ids):
        return f"{other.name}: {len(other.token_ids)} answers of {len(one.token_ids)}"
    for number, (ours, theirs) in enumerate(zip(one.token_ids, other.token_ids, strict=True)):
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            place = next((at for at, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
            return f"{other.name}: answer {number} differs from that of {one.name} at token {place}"
    return ""
