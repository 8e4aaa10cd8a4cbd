"""Reads a checkpoint's tensors by name, cast and moved on the way, each exactly once.

Files are memory-mapped, so loading needs little more memory than the weights themselves.
A tensor that is missing, has another shape, or that no one asked for ends the start: each means
that the model would compute something else than its authors did.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from shared.checkpoint import Checkpoint, weight_files
from shared.engine.layers import Linear
from shared.errors import ModelError

IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
"""constants that old checkpoints stored beside the weights"""


class WeightReader:
    """Open files of one checkpoint; use as a context manager."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._files = ExitStack()
        self._where: Mapping[str, Any] = {}
        self._read: set[str] = set()

    def __enter__(self) -> "WeightReader":
        where: dict[str, Any] = {}
        for path in weight_files(self._checkpoint.path):
            try:
                file = self._files.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._files.close()
                raise ModelError(f"{path}: not a readable safetensors file: {error}") from None
            where.update(dict.fromkeys(file.keys(), file))
        self._where = where
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.close()

    @property
    def device(self) -> torch.device:
        """Where tensors go."""
        return self._device

    def has(self, name: str) -> bool:
        return name in self._where

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name`, which must have this shape."""
        raw = self._raw(name, shape)
        return raw.to(device=self._device, dtype=self._dtype, copy=True)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
        """The layer `name` (its .weight and, if the config says so, its .bias)."""
        return self.fused({name: outputs}, inputs, bias=bias)

    def fused(self, outputs: Mapping[str, int], inputs: int, *, bias: bool = False) -> Linear:
        """Several layers over the same input as one: their outputs lie side by side."""
        total = sum(outputs.values())
        weight = torch.empty(total, inputs, dtype=self._dtype, device=self._device)
        offset = torch.zeros(total, dtype=self._dtype, device=self._device) if bias else None
        start = 0
        for name, width in outputs.items():
            weight[start : start + width] = self._raw(name + ".weight", (width, inputs))
            if offset is not None:
                offset[start : start + width] = self._raw(name + ".bias", (width,))
            start += width
        return Linear(weight, offset)

    def conv1d(self, name: str, outputs: int, inputs: int) -> Linear:
        """The layer `name` whose weight is stored as [inputs, outputs], with its bias."""
        weight = self._raw(name + ".weight", (inputs, outputs)).t()
        wanted = weight.to(self._device, self._dtype, memory_format=torch.contiguous_format)
        return Linear(wanted.contiguous(), self.tensor(name + ".bias", outputs))

    def lm_head(self, embedding: torch.Tensor, *, tied: bool) -> Linear:
        """The product with the vocabulary; with the embedding itself where the two are tied."""
        if tied:
            self.ignore("lm_head.weight")
            return Linear(embedding)
        return self.linear("lm_head", *embedding.shape)

    def ignore(self, name: str) -> None:
        """This tensor may be there and is not needed."""
        self._read.add(name)

    def check_all_read(self) -> None:
        """ModelError if the checkpoint holds tensors the model never asked for."""
        left = sorted(
            name for name in self._where.keys() - self._read if not name.endswith(IGNORED_SUFFIXES)
        )
        if left:
            raise ModelError(
                f"{self._checkpoint.path}: {len(left)} tensors have no place in a "
                f"{self._checkpoint.config.architecture}, the first is {left[0]}"
            )

    def _raw(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._where:
            raise ModelError(f"{self._checkpoint.path}: tensor {name} is missing")
        try:
            raw: torch.Tensor = self._where[name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self._checkpoint.path}: tensor {name}: {error}") from None
        if tuple(raw.shape) != shape:
            raise ModelError(
                f"{self._checkpoint.path}: tensor {name} has shape {list(raw.shape)}, "
                f"config.json says {list(shape)}"
            )
        if not raw.is_floating_point():
            raise ModelError(f"{self._checkpoint.path}: tensor {name} is {raw.dtype}, not a float")
        self._read.add(name)
        return raw
