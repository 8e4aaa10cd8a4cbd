"""Weights drawn at random instead of read, made where they will be used: 16 GB in seconds.

They are like trained ones in what speed and arithmetic depend on. No value repeats or is zero
(matrix products on constants run faster than on real weights), a matrix of K inputs has a
deviation of 1 / sqrt(K), so that activations keep their size through the layers, and norms lie
around 1. A tensor depends on the model's and its own name and shape only, not on when it is drawn.
"""

import math
import zlib

import torch

from shared.engine.layers.weights import WeightReader

NORM_STD = 0.1
BIAS_STD = 0.02


class RandomWeights(WeightReader):
    """A reader of a checkpoint that has every tensor a model asks for, and no other."""

    def __enter__(self) -> "RandomWeights":
        return self

    def has(self, name: str) -> bool:
        """Whatever a family looks for is there."""
        return True

    def _raw(
        self, name: str, shape: tuple[int, ...], spans: tuple[slice, ...] = ()
    ) -> torch.Tensor:
        """The tensor or a part of it, on the device and in the type that are wanted."""
        drawn = self._drawn(name, shape)
        return drawn[spans] if spans else drawn

    def _drawn(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator(device=self._device)
        generator.manual_seed(zlib.crc32(f"{self._checkpoint.name} {name}".encode()))
        raw = torch.empty(shape, dtype=self._dtype, device=self._device)
        if len(shape) > 1:
            return raw.normal_(0.0, 1 / math.sqrt(shape[-1]), generator=generator)
        if name.endswith(".bias"):
            return raw.normal_(0.0, BIAS_STD, generator=generator)
        return raw.normal_(1.0, NORM_STD, generator=generator)
