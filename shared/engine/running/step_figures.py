"""What the latest timed steps made of the device, as a worker's gauges show it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shared.engine.running.ceilings import Ceilings
from shared.engine.running.step_size import StepSize
from shared.model.model_size import ModelSize

KEPT = 1 - 1 / 128
"""of the steps before, in the sums with the next one: about the latest 128 count"""


@dataclass(frozen=True)
class Yardstick:
    """What the steps of a rank are measured by."""

    size: ModelSize
    ceilings: Ceilings
    rows_of: Callable[[int], int]
    """rows that a step of N tokens computes, where it has no chunk"""


class Sums(NamedTuple):
    """Over the latest timed steps, each counting less than the one after it."""

    tokens: float = 0.0
    rows: float = 0.0
    busy_s: float = 0.0
    """of steps that followed upon another, with `gap_s` before them"""
    gap_s: float = 0.0
    decode_s: float = 0.0
    decode_bytes: float = 0.0
    chunk_s: float = 0.0
    chunk_flops: float = 0.0


class StepFigures:
    """Told of each timed step by the step loop."""

    def __init__(self) -> None:
        self.yardstick: Yardstick | None = None
        """without one nothing is noted"""
        self._sums = Sums()

    def note(self, step: StepSize, step_s: float, gap_s: float | None) -> None:
        """`gap_s`: for which the device waited for the host before it; None: it had nothing to do
        before."""
        yardstick = self.yardstick
        if yardstick is None:
            return
        size, tokens = yardstick.size, step.num_rows + step.num_chunk_tokens
        decodes = not step.num_chunk_tokens
        noted = Sums(
            tokens=tokens,
            rows=yardstick.rows_of(tokens) if decodes else tokens,
            busy_s=step_s if gap_s is not None else 0.0,
            gap_s=gap_s or 0.0,
            decode_s=step_s if decodes else 0.0,
            decode_bytes=read_bytes(size, step) if decodes else 0.0,
            chunk_s=0.0 if decodes else step_s,
            chunk_flops=0.0 if decodes else flops(size, step),
        )
        self._sums = Sums(*(KEPT * old + new for old, new in zip(self._sums, noted, strict=True)))

    def values(self) -> dict[str, float]:
        """Gauge -> share, 0 to 1; one that no step has had a part in is left out."""
        yardstick, sums = self.yardstick, self._sums
        if yardstick is None:
            return {}
        ceilings = yardstick.ceilings
        shares = {
            "padding_ratio": (sums.rows - sums.tokens, sums.rows),
            "host_gap_ratio": (sums.gap_s, sums.gap_s + sums.busy_s),
            "bandwidth_share": (sums.decode_bytes, sums.decode_s * ceilings.copy_bytes_per_s),
            "flops_share": (sums.chunk_flops, sums.chunk_s * ceilings.matmul_flops_per_s),
        }
        return {name: part / whole for name, (part, whole) in shares.items() if whole}


def read_bytes(size: ModelSize, step: StepSize) -> float:
    """Least that a step without a chunk reads: the weights once, K and V of each row, of which all
    are taken to be equally long."""
    kv_bytes = size.kv_read_bytes(step.num_context_tokens / max(1, step.num_rows))
    return size.weight_bytes + step.num_rows * kv_bytes


def flops(size: ModelSize, step: StepSize) -> float:
    """Least that a step multiplies and adds: the layers for each token, the product with the
    vocabulary for each row and one more, and both products of attention."""
    tokens = step.num_rows + step.num_chunk_tokens
    pairs = step.num_context_tokens + step.num_chunk_pairs
    attention = size.flops_of_pairs(pairs, pairs / max(1, tokens))
    return 2.0 * (size.layer_params * tokens + size.head_params * (step.num_rows + 1)) + attention
