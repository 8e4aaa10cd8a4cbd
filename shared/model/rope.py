"""What config.json says about rotary positions: the base, and how it was stretched afterwards.

Two forms of file say it: transformers 4 wrote `rope_theta` and `rope_scaling`, 5 writes
`rope_parameters`. A kind of scaling also decides how long a sequence may be:

kind       default length                            longest that --max-model-len may ask for
none       max_position_embeddings                   the same
llama3     max_position_embeddings                   the same
yarn       factor x original_max_position_embeddings, or max_position_embeddings if larger
linear     max_position_embeddings                   factor x that
dynamic    max_position_embeddings                   factor x that

Authors of linear checkpoints put either length into max_position_embeddings, so the longer one
has to be asked for. For dynamic see DynamicRope. Needs no torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import ModelError
from shared.model.config_fields import count, number

DEFAULT_THETA = 10000.0
KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True)
class LinearRope:
    """Position interpolation: every angle divided by `factor` (arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True)
class DynamicRope:
    """Dynamic NTK: the base grows with the length of the sequence beyond the original one.

    Recomputing it per sequence would make cached keys wrong as a sequence grows, so here it is
    fixed once, when the model is loaded, for the longest sequence served. Up to
    max_position_embeddings, the default, that is the base as trained.
    """

    factor: float
    original_max_position_embeddings: int

    def base(self, theta: float, head_dim: int, max_positions: int) -> float:
        """The base for sequences of up to `max_positions`."""
        original = self.original_max_position_embeddings
        stretch = self.factor * max(max_positions, original) / original - (self.factor - 1)
        return float(theta * stretch ** (head_dim / (head_dim - 2)))


@dataclass(frozen=True)
class YarnRope:
    """YaRN (arXiv 2309.00071): slow waves interpolated, fast ones kept, a ramp between, and
    scores sharpened through longer rotated vectors."""

    factor: float
    attention_factor: float
    """what cos and sin are multiplied with"""
    beta_fast: float
    """turns within the original length from which on a wave is kept"""
    beta_slow: float
    """turns below which it is interpolated fully"""
    truncate: bool
    """whether the ramp's ends are whole dimensions"""
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Llama3Rope:
    """Llama 3.1's change to the rotary frequencies (arXiv 2407.21783, and its reference code)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions of one model."""

    theta: float
    scaling: LinearRope | DynamicRope | YarnRope | Llama3Rope | None = None

    def default_len(self, max_position_embeddings: int) -> int:
        """Tokens of a sequence when nobody asks for another length."""
        if isinstance(self.scaling, YarnRope):
            return self.longest_len(max_position_embeddings)
        return max_position_embeddings

    def longest_len(self, max_position_embeddings: int) -> int:
        """Most tokens of a sequence."""
        if isinstance(self.scaling, YarnRope):
            stretched = self.scaling.factor * self.scaling.original_max_position_embeddings
            return max(max_position_embeddings, int(stretched))
        if isinstance(self.scaling, LinearRope | DynamicRope):
            return int(self.scaling.factor * max_position_embeddings)
        return max_position_embeddings


def parse_rope(raw: Mapping[str, Any], head_dim: int, max_position_embeddings: int) -> RopeConfig:
    """The rotary part of a config.json's content, in either form; ModelError if it is one that
    we do not compute."""
    given = _given(raw)
    theta = number(given if "rope_theta" in given else raw, "rope_theta", DEFAULT_THETA)
    if theta <= 1:
        raise ModelError(f"config.json: rope_theta {theta} is not above 1")
    # As in transformers, an original length outside the rope's fields beats one among them.
    original = count(raw, "original_max_position_embeddings", 0) or count(
        given, "original_max_position_embeddings", max_position_embeddings
    )
    match given.get("rope_type", given.get("type", "default")):
        case "default":
            return RopeConfig(theta)
        case "linear":
            return RopeConfig(theta, LinearRope(_factor(given)))
        case "dynamic":
            if original != max_position_embeddings:
                raise ModelError(
                    "config.json: rope type dynamic whose original_max_position_embeddings is "
                    f"{original}, not max_position_embeddings {max_position_embeddings}, "
                    "is not supported"
                )
            if head_dim <= 2:
                raise ModelError(f"config.json: rope type dynamic needs more than {head_dim=}")
            return RopeConfig(theta, DynamicRope(_factor(given), original))
        case "yarn":
            return RopeConfig(theta, _yarn(given, original, max_position_embeddings))
        case "llama3":
            scaling = Llama3Rope(
                factor=_factor(given),
                low_freq_factor=number(given, "low_freq_factor"),
                high_freq_factor=number(given, "high_freq_factor"),
                original_max_position_embeddings=original,
            )
            return RopeConfig(theta, scaling)
        case kind:
            raise ModelError(
                f"config.json: rope type {kind!r} is not supported ({', '.join(KINDS)})"
            )


def _given(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of `rope_parameters` or `rope_scaling`, whichever the file has."""
    new, old = raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}
    for name, fields in (("rope_parameters", new), ("rope_scaling", old)):
        if not isinstance(fields, Mapping):
            raise ModelError(f"config.json: {name} is {fields!r}, needs an object")
        if any(isinstance(value, Mapping) for value in fields.values()):
            raise ModelError(f"config.json: {name} per layer type is not supported")
    if new and old and new != old:
        raise ModelError("config.json: rope_parameters and rope_scaling disagree")
    given: Mapping[str, Any] = new or old
    for source in (raw, given):
        if source.get("partial_rotary_factor") not in (None, 1):
            raise ModelError("config.json: partial_rotary_factor is not supported")
    return given


def _yarn(given: Mapping[str, Any], original: int, max_position_embeddings: int) -> YarnRope:
    """Absent fields as the paper recommends."""
    factor = max_position_embeddings / original if given.get("factor") is None else _factor(given)
    attention_factor = given.get("attention_factor")
    mscale, mscale_all_dim = (number(given, name, 0) for name in ("mscale", "mscale_all_dim"))
    if attention_factor is not None:
        attention_factor = number(given, "attention_factor")
    elif mscale and mscale_all_dim:
        attention_factor = _sharpness(factor, mscale) / _sharpness(factor, mscale_all_dim)
    else:
        attention_factor = _sharpness(factor, 1.0)
    return YarnRope(
        factor=factor,
        attention_factor=attention_factor,
        beta_fast=number(given, "beta_fast", 0) or 32.0,
        beta_slow=number(given, "beta_slow", 0) or 1.0,
        truncate=bool(given.get("truncate", True)),
        original_max_position_embeddings=original,
    )


def _sharpness(factor: float, mscale: float) -> float:
    """The square root of what the paper divides its softmax temperature by."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _factor(given: Mapping[str, Any]) -> float:
    factor = number(given, "factor")
    if factor < 1:
        raise ModelError(f"config.json: rope factor {factor} is below 1")
    return factor
