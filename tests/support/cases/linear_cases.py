"""Cases of skinny_linear, interpreted or compiled: ragged shapes, every option, poisoned memory."""

from dataclasses import dataclass

import torch

from kernels.linear.reference import linear
from kernels.linear.skinny_linear import Norm, skinny_linear
from kernels.linear.skinny_tiles import SkinnyTile, SkinnyWorkspace

MAX_ERRORS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""||output - reference|| / ||reference||, which is in x's dtype but computed in float32"""


@dataclass(frozen=True)
class LinearCase:
    """Shapes and options of one call."""

    rows: int
    columns: int
    inputs: int
    bias: bool = False
    norm: bool = False
    residual: bool = False
    gated: bool = False
    strided: bool = False
    """x is a slice of a wider tensor, and so are residual and output"""


@dataclass(frozen=True)
class LinearInputs:
    """Tensors of one call."""

    x: torch.Tensor
    weight: torch.Tensor
    output: torch.Tensor
    bias: torch.Tensor | None
    norm: Norm | None
    residual: torch.Tensor | None


def linear_inputs(case: LinearCase, dtype: torch.dtype, device: str, seed: int = 0) -> LinearInputs:
    """Random tensors; the output holds NaN."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype=dtype, device=device)

    def matrix(columns: int) -> torch.Tensor:
        return draw(case.rows, columns + 16)[:, 8:-8] if case.strided else draw(case.rows, columns)

    weight_rows = case.columns * (1 + case.gated)
    weight = draw(weight_rows, case.inputs) * case.inputs**-0.5
    output = matrix(case.columns)
    output.fill_(float("nan"))
    return LinearInputs(
        x=matrix(case.inputs) * 3 if not case.strided else matrix(case.inputs),
        weight=weight,
        output=output,
        bias=draw(weight_rows) if case.bias else None,
        norm=Norm(1 + draw(case.inputs) / 4, 1e-5) if case.norm else None,
        residual=matrix(case.columns) if case.residual else None,
    )


def multiply(case: LinearCase, inputs: LinearInputs, tile: SkinnyTile) -> torch.Tensor:
    """The kernel's answer; its parts are poisoned."""
    workspace = SkinnyWorkspace.allocate([tile], inputs.x.device)
    workspace.parts.fill_(float("nan"))
    workspace.squares.fill_(float("nan"))
    skinny_linear(
        inputs.x,
        inputs.weight,
        inputs.output,
        workspace,
        tile,
        bias=inputs.bias,
        norm=inputs.norm,
        residual=inputs.residual,
        gated=case.gated,
    )
    assert not workspace.arrivals.any(), "the next call would not find its arrivals at zero"
    return inputs.output


def expected(case: LinearCase, inputs: LinearInputs) -> torch.Tensor:
    return linear(
        inputs.x,
        inputs.weight,
        bias=inputs.bias,
        norm=inputs.norm,
        residual=inputs.residual,
        gated=case.gated,
    )


def relative_error(output: torch.Tensor, wanted: torch.Tensor) -> float:
    """Infinite for an output with a NaN, which no bound must pass."""
    error = (output.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)
    return float(error.nan_to_num(nan=float("inf")))
