"""What is said where a GPU has no memory for the largest step, on a GPU that is pretended."""

import pytest
import torch

from shared.engine.loading.memory_trial import measure
from shared.errors import SettingsError


def test_a_largest_step_without_memory_is_told_what_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("synchronize", "empty_cache", "memory_allocated", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)

    def largest_step() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(SettingsError, match=r"finds no memory .*--max-num-batched-tokens"):
        measure(torch.device("cuda"), 0.9, largest_step)
