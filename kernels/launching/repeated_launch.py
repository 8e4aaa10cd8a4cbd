"""Launches that repeat: each layer of a step runs the same kernels on tensors of the same form.

What a launcher checks and works out follows from the form of its tensors and from a few settings,
and so does, but for alignment, what Triton compiles or looks up. Both are done once and kept; what
remains of a launch on the host is a look-up and the call of the compiled kernel. Without this a
layer of a small model takes the host longer than the GPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton.runtime import driver
from triton.runtime.interpreter import InterpretedFunction

ALIGNMENT = 16
"""bytes of an address, and what divides a number: Triton compiles for either case"""


class Launch:
    """A kernel with all of its arguments but tensors and maybe an offset."""

    def __init__(
        self,
        kernel: Any,
        grid: Sequence[int],
        numbers: Sequence[Any],
        constants: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        """The kernel's parameters are descriptors, tensors, the offset, `numbers` and then
        `constants`. A grid without programs launches nothing."""
        self._kernel = kernel
        self._grid = (*grid, 1, 1)[:3]
        self._numbers = numbers
        self._named = constants | options
        self._constants = tuple(constants[name] for name in kernel.arg_names[-len(constants) :])
        self._compiled: dict[tuple[Any, ...], Callable[..., None]] = {}
        """launches of compiled kernels, by what else Triton chooses a kernel by"""

    def __call__(
        self, *tensors: torch.Tensor, offset: int | None = None, descriptors: Sequence[Any] = ()
    ) -> None:
        """Tensors with the shapes, strides and types of the first call, descriptors to match."""
        if 0 in self._grid:
            return
        given = (*descriptors, *tensors) if offset is None else (*descriptors, *tensors, offset)
        if isinstance(self._kernel, InterpretedFunction):
            self._kernel[self._grid](*given, *self._numbers, **self._named)
            return
        key = (
            driver.active.get_current_device(),
            _kind(offset),
            *[tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors],
        )
        launch = self._compiled.get(key)
        if launch is not None:
            launch(*given, *self._numbers, *self._constants)
            return
        compiled = self._kernel[self._grid](*given, *self._numbers, **self._named)
        if compiled is not None:
            self._compiled[key] = compiled[self._grid]


def _kind(number: int | None) -> tuple[bool, bool, bool] | None:
    """What Triton sees of a whole number, which is not negative."""
    if number is None:
        return None
    return number == 1, number % ALIGNMENT == 0, number.bit_length() > 31
