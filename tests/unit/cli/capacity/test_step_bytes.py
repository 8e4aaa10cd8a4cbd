"""The estimate of the largest step is an upper one: no step holds as much at a time."""

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from services.cli.capacity.devices import Device
from services.cli.capacity.estimate import WORKSPACE_BYTES, Question, estimate
from shared.engine.layers.attention import TiledAttention
from shared.engine.layers.kv_cache import pool_shape
from shared.engine.layers.operations import TorchOperations
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.loading.pool_size import SAMPLING_BYTES
from shared.engine.loading.runner_parts import load_model
from shared.engine.running.empty_steps import prompt_step
from shared.engine.running.model_runner import to_tensors
from shared.model.checkpoint import random_checkpoint
from tests.support.models.tiny_model import TINY, TINY_GPT2
from tests.support.settings import settings_with

NUM_ROWS, NUM_SEQS, LENGTH = 512, 32, 1024
WIDE = {"num_hidden_layers": 2, "hidden_size": 512, "head_dim": 64, "intermediate_size": 2048}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**TINY, **WIDE, "num_attention_heads": 8, "max_position_embeddings": LENGTH},
    "large-vocabulary": {**TINY, "vocab_size": 60000, "max_position_embeddings": LENGTH},
    "gpt2": {**TINY_GPT2, "n_embd": 512, "n_head": 8, "n_positions": LENGTH},
}


class LiveBytes(TorchDispatchMode):
    """Notes the most that the tensors made under it hold at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, function: Any, _: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        made = function(*arguments, **(options or {}))
        for item in made if isinstance(made, Sequence) else [made]:
            if isinstance(item, torch.Tensor):
                self._note(item.untyped_storage())
        self.peak = max(self.peak, sum(self._live.values()))
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._live:
            self._live[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self._live.pop, storage._cdata, None)


@pytest.mark.parametrize("name", MODELS)
def test_no_step_holds_as_much(name: str) -> None:
    checkpoint = random_checkpoint(Path("none"), name, MODELS[name])
    settings = settings_with(
        dtype="float32",
        max_num_batched_tokens=NUM_ROWS,
        max_num_seqs=NUM_SEQS,
        max_model_len=LENGTH,
    )
    device = Device("host", 2**40, on_gpu=False)
    capacity = estimate(
        Question(checkpoint, device, settings.compute, settings.kv, settings.engine)
    )
    with RandomWeights(checkpoint, torch.float32, torch.device("cpu")) as reader:
        model = load_model(checkpoint.config, reader, LENGTH, TorchOperations())
    pool = torch.zeros(pool_shape(capacity.layout, 1))
    step = prompt_step(NUM_ROWS, NUM_SEQS, LENGTH, settings.kv.block_size)
    with torch.inference_mode(), LiveBytes() as live:
        tensors = to_tensors(step)
        hidden = model.forward(tensors, pool, TiledAttention())
        model.logits(hidden.index_select(0, tensors.logits_rows)).float()
    sampling = SAMPLING_BYTES * NUM_SEQS * checkpoint.config.vocab_size
    assert live.peak > 2**20
    estimated = capacity.step_bytes - WORKSPACE_BYTES
    assert live.peak + sampling < estimated < 8 * (live.peak + sampling)
