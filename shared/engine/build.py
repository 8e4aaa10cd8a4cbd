"""Puts an engine together from settings: checkpoint, device, weights, KV pool, and the loop."""

import importlib
import logging
from typing import Literal

import torch

from shared.checkpoint import (
    Checkpoint,
    kv_layout,
    load_checkpoint,
    max_model_len,
    resolve_dtype,
)
from shared.engine.attention import TiledAttention
from shared.engine.block_pool import BlockPool
from shared.engine.engine import Engine
from shared.engine.grammars import Grammars
from shared.engine.kv_cache import TORCH_DTYPES, device_pool, pool_of
from shared.engine.layers import row_invariant
from shared.engine.model import Model
from shared.engine.model_runner import ModelRunner
from shared.engine.sampler import Sampler
from shared.engine.scheduler import Scheduler
from shared.engine.staging import HostStaging
from shared.engine.weights import WeightReader
from shared.errors import GrammarError, MissingError, SettingsError
from shared.grammar.matcher import TOKENIZER_FILE, GrammarVocabulary, grammars_available
from shared.kv_layout import KVLayout
from shared.kv_memory import KVMemory
from shared.model_config import ARCHITECTURES
from shared.settings import Settings

log = logging.getLogger(__name__)

MIB = 2**20
MIN_BLOCKS = 2


def build_engine(settings: Settings, role: Literal["prefill", "decode"]) -> Engine:
    """An engine ready to step. SettingsError, ModelError or MissingError say why not."""
    checkpoint = load_checkpoint(settings.model)
    device = resolve_device(settings.device)
    set_threads(settings.threads, device)
    dtype = resolve_dtype(settings.dtype, checkpoint.config, device.type)
    length = max_model_len(checkpoint.config, settings.max_model_len)
    layout = kv_layout(checkpoint, dtype, settings.block_size, settings.max_model_len)
    model = load_model(checkpoint, TORCH_DTYPES[dtype], device, length)
    if device.type == "cpu":
        check_arithmetic(model)
    num_blocks = count_blocks(settings, layout, device)
    longest = min(length, num_blocks * settings.block_size)
    if longest < length:
        log.warning(
            "longest sequence: %d tokens (limited by the KV pool of %d blocks; the model's is %d)",
            longest,
            num_blocks,
            length,
        )
    kv_pool, memory, staging = create_pool(layout, num_blocks, device)
    pool = BlockPool(
        num_blocks, settings.block_size, memory.generations, prefix_cache=settings.prefix_cache
    )
    scheduler = Scheduler(
        pool,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=longest,
    )
    runner = ModelRunner(model, kv_pool, TiledAttention())
    return Engine(runner, scheduler, Sampler(), memory, role, staging, load_grammars(checkpoint))


def load_grammars(checkpoint: Checkpoint) -> Grammars:
    """What follows grammars; where that cannot be, a request with one fails and others do not.

    Loaded before anything is served: it would stop the step loop for as long as it takes.
    """
    if not grammars_available() or not (checkpoint.path / TOKENIZER_FILE).is_file():
        return Grammars(None)
    try:
        vocabulary = GrammarVocabulary.load(
            checkpoint.path, checkpoint.config.vocab_size, checkpoint.eos_token_ids
        )
    except GrammarError as error:
        log.warning("no grammars: %s", error)
        return Grammars(None)
    return Grammars(vocabulary)


def load_model(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, length: int
) -> Model:
    """The checkpoint's model with its weights, for sequences of up to `length` tokens."""
    config = checkpoint.config
    family = importlib.import_module(ARCHITECTURES[config.architecture].module)
    with WeightReader(checkpoint, dtype, device) as reader:
        model: Model = family.Model(config, reader, length)
        reader.check_all_read()
    return model


def create_pool(
    layout: KVLayout, num_blocks: int, device: torch.device
) -> tuple[torch.Tensor, KVMemory, HostStaging | None]:
    """The pool tensor, the memory the io process maps, and what carries blocks between them.

    On a CPU they are one and the same bytes and there is nothing to carry; their pages are taken
    now, so that memory which is not there is missed at the start and use stays the same after.
    """
    memory = KVMemory.create(layout, num_blocks)
    if device.type == "cpu":
        return pool_of(memory).zero_(), memory, None
    kv_pool = device_pool(layout, num_blocks, device)
    return kv_pool, memory, HostStaging(memory, kv_pool)


def resolve_device(wanted: str) -> torch.device:
    """auto: the first CUDA device if there is one, else the CPU."""
    if wanted == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise SettingsError(f"--device {wanted!r} is not auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"--device {wanted!r} is not auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        number = device.index or 0
        if number >= torch.cuda.device_count():
            raise MissingError(f"--device {wanted}: torch sees {torch.cuda.device_count()} GPUs")
        return torch.device("cuda", number)
    return device


def set_threads(threads: int, device: torch.device) -> None:
    """Torch's intra-op threads; more than one splits sums by size, hence by batch."""
    torch.set_num_threads(threads)
    if threads > 1 and device.type == "cpu":
        log.warning(
            "%d torch threads: an answer's last bits may depend on what shares its batch; "
            "--threads 1 keeps them exact",
            threads,
        )


def check_arithmetic(model: Model) -> bool:
    """Whether this machine's BLAS keeps the promise of exact answers; says so if not."""
    shapes = {linear.weight.shape: linear for linear in model.linears}
    exact = all(map(row_invariant, shapes.values()))
    if not exact:
        log.warning(
            "matrix products on this machine depend on their number of rows: "
            "an answer's last bits may depend on what shares its batch"
        )
    return exact


def count_blocks(settings: Settings, layout: KVLayout, device: torch.device) -> int:
    """Blocks of the pool; call it on a GPU once the weights are there."""
    if settings.kv_blocks:
        return settings.kv_blocks
    if device.type == "cpu":
        room_bytes = settings.kv_memory_mib * MIB
        setting = "--kv-memory-mib"
    else:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        used_bytes = total_bytes - free_bytes
        room_bytes = int(total_bytes * settings.gpu_memory_utilization) - used_bytes
        setting = "--gpu-memory-utilization"
    num_blocks = room_bytes // layout.block_bytes
    if num_blocks < MIN_BLOCKS:
        raise SettingsError(
            f"{setting} leaves room for {max(0, num_blocks)} KV blocks of "
            f"{layout.block_bytes} bytes, needs {MIN_BLOCKS}"
        )
    return int(num_blocks)
