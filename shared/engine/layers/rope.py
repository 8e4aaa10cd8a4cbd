"""Rotary position embedding (arXiv 2104.09864), halves rotated as in Hugging Face.

shared.model.rope says which frequencies a checkpoint asks for; here they become angles.
"""

import math
from typing import assert_never

import torch

from shared.model.config import ModelConfig
from shared.model.rope import DynamicRope, LinearRope, Llama3Rope, RopeConfig, YarnRope


class Rope:
    """cos and sin of every position a model is loaded for."""

    def __init__(self, config: ModelConfig, max_positions: int, device: torch.device) -> None:
        assert config.rope is not None
        frequencies = inverse_frequencies(config.rope, config.head_dim, max_positions)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        scaling = config.rope.scaling
        length = scaling.attention_factor if isinstance(scaling, YarnRope) else 1.0
        self.cos = angles.cos().mul_(length).to(device)
        self.sin = angles.sin().mul_(length).to(device)

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin for the rows of a step, each [T, 1, head_dim / 2]."""
        cos = self.cos.index_select(0, positions).unsqueeze(1)
        sin = self.sin.index_select(0, positions).unsqueeze(1)
        return cos.to(dtype), sin.to(dtype)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + head_dim / 2) of [T, H, head_dim] by its position's angle."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int, max_positions: int) -> torch.Tensor:
    """f32[head_dim / 2], radians per position, for sequences of up to `max_positions`."""
    scaling = rope.scaling
    match scaling:
        case None:
            return _plain(rope.theta, head_dim)
        case LinearRope():
            return _plain(rope.theta, head_dim) / scaling.factor
        case DynamicRope():
            return _plain(scaling.base(rope.theta, head_dim, max_positions), head_dim)
        case YarnRope():
            return _yarn(rope.theta, head_dim, scaling)
        case Llama3Rope():
            return _llama3(rope.theta, head_dim, scaling)
        case _:
            assert_never(scaling)


def _plain(theta: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (theta**exponents)


def _yarn(theta: float, head_dim: int, rope: YarnRope) -> torch.Tensor:
    """Waves of more than beta_fast turns within the original length are kept, those of fewer
    than beta_slow divided by `factor`, and between the two a ramp over the dimension blends."""

    def dimension_of(turns: float) -> float:
        """The dimension, maybe fractional, whose wave turns that often."""
        wavelength = rope.original_max_position_embeddings / turns
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    first, last = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # a step instead of a ramp of no width
    interpolated = (torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)
    interpolated = interpolated.clamp(0.0, 1.0)
    frequencies = _plain(theta, head_dim)
    return frequencies / rope.factor * interpolated + frequencies * (1 - interpolated)


def _llama3(theta: float, head_dim: int, rope: Llama3Rope) -> torch.Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between are blended."""
    frequencies = _plain(theta, head_dim)
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_max_position_embeddings / wavelengths
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies
