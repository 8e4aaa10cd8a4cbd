"""The parts of a decoder layer by our kernels, for a GPU.

Few rows are bound by reading the weights: norm, product, gate and residual are one kernel that
does nothing else. Many rows are bound by arithmetic: the product is the vendor's, with a kernel
before or after it. Every kernel of ours may begin while the one before it ends (programmatic
dependent launch), where the device can do that.
"""

import torch

from kernels.elementwise.rms_norm import rms_norm
from kernels.elementwise.rope_store import rope_store
from kernels.elementwise.silu_mul import silu_mul
from kernels.linear.skinny_linear import Norm, skinny_linear
from kernels.linear.skinny_tiles import MAX_ROWS, SkinnyTile, SkinnyWorkspace, skinny_tile
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.device_traits import DeviceTraits
from shared.engine.layers.matrices import LayerNorm, Linear, RmsNorm
from shared.engine.layers.operations import Angles
from shared.engine.layers.rope import Rope


class KernelOperations:
    """See shared.engine.layers.operations.Operations. One per stream: launches share a
    workspace."""

    def __init__(self, device: torch.device, traits: DeviceTraits) -> None:
        self._traits = traits
        self._device = device
        self._workspaces = [SkinnyWorkspace.allocate([], device)]
        """the last serves every tile so far; captured graphs go on with those before it"""
        self._tiles: dict[tuple[int, torch.Size, torch.dtype, bool, bool], SkinnyTile | None] = {}

    def project(
        self,
        rows: torch.Tensor,
        norm: RmsNorm | LayerNorm,
        linear: Linear,
        output: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if output is None:
            output = rows.new_empty(rows.shape[0], linear.weight.shape[0])
        if isinstance(norm, RmsNorm):
            tile = self._tile(rows, linear, norm=True)
            if tile is not None:
                return self._skinny(rows, linear, tile, output, norm=norm)
            normed = self._normed(rows, norm)
        else:
            normed = norm(rows)
        torch.mm(normed, linear.weight.t(), out=output)
        return output if linear.bias is None else output.add_(linear.bias)

    def gate(self, rows: torch.Tensor, norm: RmsNorm, gate_up: Linear) -> torch.Tensor:
        tile = self._tile(rows, gate_up, norm=True, gated=True)
        output = rows.new_empty(rows.shape[0], gate_up.weight.shape[0] // 2)
        if tile is not None:
            return self._skinny(rows, gate_up, tile, output, norm=norm, gated=True)
        silu_mul(gate_up(self._normed(rows, norm)), output, overlap=self._overlaps(rows))
        return output

    def add(
        self, residual: torch.Tensor | None, linear: Linear, rows: torch.Tensor
    ) -> torch.Tensor:
        tile = self._tile(rows, linear)
        if tile is not None:
            output = residual
            if output is None:
                output = rows.new_empty(rows.shape[0], linear.weight.shape[0])
            return self._skinny(rows, linear, tile, output, residual=residual)
        if residual is None:
            return linear(rows)
        if linear.bias is not None:
            residual += linear.bias
        return residual.addmm_(rows, linear.weight.t())

    def angles(self, rope: Rope, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
        """The whole tables: the kernel looks its positions up."""
        return Angles(rope.cos, rope.sin)

    def turn_and_store(
        self,
        qkv: torch.Tensor,
        angles: Angles,
        qk_norm: RmsNorm | None,
        batch: BatchTensors,
        kv_pool: torch.Tensor,
        layer: int,
    ) -> torch.Tensor:
        num_kv_heads, head_dim = kv_pool.shape[3], kv_pool.shape[5]
        num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
        queries = qkv.new_empty(qkv.shape[0], num_heads, head_dim)
        rope_store(
            qkv,
            angles.cos,
            angles.sin,
            batch.positions,
            batch.slot_mapping,
            kv_pool,
            layer,
            queries,
            qk_norm=None if qk_norm is None else qk_norm.weight,
            eps=0.0 if qk_norm is None else qk_norm.eps,
            overlap=self._overlaps(qkv),
        )
        return queries

    def _normed(self, rows: torch.Tensor, norm: RmsNorm) -> torch.Tensor:
        output = torch.empty_like(rows)
        rms_norm(rows, norm.weight, norm.eps, output, overlap=self._overlaps(rows))
        return output

    def _overlaps(self, rows: torch.Tensor) -> bool:
        """A kernel over many rows gains nothing from an early start, and rope_store loses."""
        return self._traits.overlaps and rows.shape[0] <= MAX_ROWS

    def _tile(
        self, rows: torch.Tensor, linear: Linear, *, norm: bool = False, gated: bool = False
    ) -> SkinnyTile | None:
        """The launch for the number of `rows`, or None for the vendor's product."""
        if rows.shape[0] > MAX_ROWS:
            return None
        key = (rows.shape[0], linear.weight.shape, rows.dtype, norm, gated)
        if key not in self._tiles:
            outputs, inputs = linear.weight.shape
            tile = skinny_tile(
                rows.shape[0],
                (outputs, inputs),
                rows.dtype,
                gated=gated,
                norm=norm,
                capability=self._traits.capability,
                num_multiprocessors=self._traits.num_multiprocessors,
                overlap=self._traits.overlaps,
            )
            self._tiles[key] = tile
            self._make_room(tile)
        return self._tiles[key]

    def _make_room(self, tile: SkinnyTile | None) -> None:
        if tile is not None and not self._workspaces[-1].fits(tile):
            known = [known for known in self._tiles.values() if known is not None]
            self._workspaces.append(SkinnyWorkspace.allocate(known, self._device))

    def _skinny(
        self,
        rows: torch.Tensor,
        linear: Linear,
        tile: SkinnyTile,
        output: torch.Tensor,
        *,
        norm: RmsNorm | None = None,
        residual: torch.Tensor | None = None,
        gated: bool = False,
    ) -> torch.Tensor:
        skinny_linear(
            rows,
            linear.weight,
            output,
            self._workspaces[-1],
            tile,
            bias=linear.bias,
            norm=None if norm is None else Norm(norm.weight, norm.eps),
            residual=residual,
            gated=gated,
        )
        return output
