"""Reads a checkpoint's tensors by name, cast and moved on the way, each exactly once.

Files are memory-mapped, so loading needs little more memory than the weights themselves, and a
rank touches no more of a tensor than its own part. A dimension is a number, or the part of it that
this rank holds. A tensor that is missing, has another shape, or that no one asked for ends the
start: each means that the model would compute something else than its authors did.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open

from shared.engine.layers.matrices import Linear
from shared.engine.layers.shard import Part, Shard, part_of
from shared.errors import ModelError
from shared.model.checkpoint import Checkpoint, weight_files

IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
"""constants that old checkpoints stored with the weights"""


class WeightReader:
    """Open files of one checkpoint; use as a context manager."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard | None = None,
    ) -> None:
        """`shard`: what this rank holds; all of it by default."""
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self.shard = shard or Shard(checkpoint.config)
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

    def tensor(self, name: str, *shape: int | Part) -> torch.Tensor:
        """The tensor `name`, which must have this shape."""
        raw = self._part(name, *map(part_of, shape))
        return raw.to(device=self._device, dtype=self._dtype, copy=True)

    def linear(
        self, name: str, outputs: int | Part, inputs: int | Part, *, bias: bool = False
    ) -> Linear:
        """The layer `name` (its .weight and, if the config says so, its .bias)."""
        return self.fused({name: outputs}, inputs, bias=bias)

    def fused(
        self, outputs: Mapping[str, int | Part], inputs: int | Part, *, bias: bool = False
    ) -> Linear:
        """Several layers over the same input as one: their outputs lie side by side."""
        parts = {name: part_of(width) for name, width in outputs.items()}
        columns = part_of(inputs)
        total = sum(part.width for part in parts.values())
        weight = torch.empty(total, columns.width, dtype=self._dtype, device=self._device)
        start = 0
        for name, rows in parts.items():
            weight[start : start + rows.width] = self._part(name + ".weight", rows, columns)
            start += rows.width
        if not bias:
            return Linear(weight)
        biases = [self._bias(name + ".bias", [rows], columns) for name, rows in parts.items()]
        held = [offset for offset in biases if offset is not None]
        return Linear(weight, torch.cat(held) if held else None)

    def conv1d(self, name: str, outputs: int | Part, inputs: int | Part) -> Linear:
        """The layer `name` whose weight is stored as [inputs, outputs], with its bias."""
        return self.fused_conv1d(name, [outputs], inputs)

    def fused_conv1d(self, name: str, outputs: Sequence[int | Part], inputs: int | Part) -> Linear:
        """The same for a layer that is stored as several side by side: of each its part."""
        parts, columns = [part_of(width) for width in outputs], part_of(inputs)
        whole = sum(part.total for part in parts)
        rows, before = [], 0
        for part in parts:
            rows.append(Part(whole, before + part.start, before + part.stop))
            before += part.total
        weights = [self._part(name + ".weight", columns, part).t() for part in rows]
        weight = torch.cat([item.to(self._device, self._dtype) for item in weights])
        return Linear(weight.contiguous(), self._bias(name + ".bias", rows, columns))

    def lm_head(self, embedding: torch.Tensor, *, tied: bool) -> Linear:
        """The product with the vocabulary, this rank's rows of it and zeros after the last; with
        the embedding itself where the two are tied."""
        rows = self.shard.vocabulary
        missing = self.shard.vocabulary_width - rows.width
        if tied:
            self.ignore("lm_head.weight")
            weight = embedding[rows.span]
        else:
            weight = self.linear("lm_head", rows, embedding.shape[1]).weight
        return Linear(F.pad(weight, (0, 0, 0, missing)) if missing else weight)

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

    def _bias(self, name: str, parts: Sequence[Part], inputs: Part) -> torch.Tensor | None:
        """The parts of a bias one after the other. Where the inputs are split over the ranks their
        outputs are added up, so only one rank has it."""
        raws = [self._part(name, part) for part in parts]
        if not inputs.is_whole and self.shard.rank:
            return None
        return torch.cat([raw.to(self._device, self._dtype) for raw in raws])

    def _part(self, name: str, *shape: Part) -> torch.Tensor:
        whole = tuple(part.total for part in shape)
        if all(part.is_whole for part in shape):
            return self._raw(name, whole)
        return self._raw(name, whole, tuple(part.span for part in shape))

    def _raw(
        self, name: str, shape: tuple[int, ...], spans: tuple[slice, ...] = ()
    ) -> torch.Tensor:
        """These spans of a tensor that must have this shape; none: the whole."""
        if name not in self._where:
            raise ModelError(f"{self._checkpoint.path}: tensor {name} is missing")
        try:
            stored = self._where[name].get_slice(name)
            found = stored.get_shape()
            if tuple(found) != shape:
                raise ModelError(
                    f"{self._checkpoint.path}: tensor {name} has shape {found}, "
                    f"config.json says {list(shape)}"
                )
            raw: torch.Tensor = stored[spans] if spans else self._where[name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self._checkpoint.path}: tensor {name}: {error}") from None
        if not raw.is_floating_point():
            raise ModelError(f"{self._checkpoint.path}: tensor {name} is {raw.dtype}, not a float")
        self._read.add(name)
        return raw
