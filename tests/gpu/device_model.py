"""A tiny checkpoint's model on a GPU, for hand-made batches."""

import torch

from shared.engine.layers.device_traits import traits_of
from shared.engine.layers.kernel_operations import KernelOperations
from shared.engine.layers.kv_cache import TORCH_DTYPES, pool_shape
from shared.engine.layers.paged_attention import PagedAttention
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.runner_parts import load_model
from shared.engine.running.decode_graphs import DecodeGraphs
from shared.engine.running.device_runner import DeviceRunner
from shared.engine.running.step_inputs import StepInputs
from shared.model.checkpoint import Checkpoint, kv_layout, max_model_len

CUDA = torch.device("cuda")


def device_runner(
    checkpoint: Checkpoint,
    *,
    num_blocks: int,
    block_size: int = 16,
    dtype: str = "float32",
    weights: type[WeightReader] = WeightReader,
    max_sequences: int = 64,
    eager: bool = False,
) -> DeviceRunner:
    """Its pool starts as NaN, as stale memory might."""
    config, torch_dtype = checkpoint.config, TORCH_DTYPES[dtype]
    shape = pool_shape(kv_layout(checkpoint, dtype, block_size), num_blocks)
    kv_pool = torch.full(shape, torch.nan, dtype=torch_dtype, device=CUDA)
    length = max_model_len(config, 0)
    with weights(checkpoint, torch_dtype, CUDA) as reader:
        model = load_model(config, reader, length, KernelOperations(CUDA, traits_of(CUDA)))
    attention = PagedAttention(config.num_heads, config.windows, traits_of(CUDA))
    inputs = StepInputs(8192, max_sequences, num_blocks, CUDA)
    graphs = DecodeGraphs(max_sequences)
    return DeviceRunner(model, kv_pool, attention, inputs, graphs, eager=eager)
