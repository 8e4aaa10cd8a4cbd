"""Launches that were checked and shaped, by the form of their tensors. Imports no triton."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

MAX_KNOWN = 256
"""launches that are kept: a step of another number of tokens has others"""


class KnownLaunches:
    """Launches of one launcher, by the form of their tensors and by settings."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def find(
        self, prepare: Callable[..., Any], tensors: Sequence[torch.Tensor], *settings: Any
    ) -> Any:
        """The Launch that prepare(*tensors, *settings) makes, once for all tensors of this form. It
        must depend on nothing else of them, and raise for what does not fit."""
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
