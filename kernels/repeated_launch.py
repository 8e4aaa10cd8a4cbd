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

MAX_KNOWN = 256
"""launches that are kept: a step of another number of tokens has others"""
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
        """The kernel's parameters are the tensors, the offset, `numbers` and `constants`, in this
        order. A grid without programs launches nothing."""
        assert kernel.arg_names[-len(constants) :] == [*constants]
        self._kernel = kernel
        self._grid = (*grid, 1, 1)[:3]
        self._numbers = numbers
        self._named = constants | options
        self._constants = tuple(constants.values())
        self._compiled: dict[tuple[Any, ...], Callable[..., None]] = {}
        """launches of compiled kernels, by what else Triton chooses a kernel by"""

    def __call__(self, *tensors: torch.Tensor, offset: int | None = None) -> None:
        """Tensors of the form that all this was made for."""
        if 0 in self._grid:
            return
        given = tensors if offset is None else (*tensors, offset)
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


class KnownLaunches:
    """Launches of one launcher, by the form of their tensors and by settings."""

    def __init__(self) -> None:
        self._known: dict[Any, Launch] = {}

    def find(
        self, prepare: Callable[..., Launch], tensors: Sequence[torch.Tensor], *settings: Any
    ) -> Launch:
        """prepare(*tensors, *settings), called once for all tensors of this form. It must depend
        on nothing else of them, and raise for what does not fit."""
        key = (
            settings,
            *[(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors],
        )
        launch = self._known.get(key)
        if launch is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            launch = self._known[key] = prepare(*tensors, *settings)
        return launch


def _kind(number: int | None) -> tuple[bool, bool, bool] | None:
    """What Triton sees of a whole number, which is not negative."""
    if number is None:
        return None
    return number == 1, number % ALIGNMENT == 0, number.bit_length() > 31
