"""Puts an engine together from settings: checkpoint, device, weights, KV pool, and the loop."""

import importlib
import logging
from dataclasses import dataclass, replace
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
from shared.engine.block_pool import MIN_BLOCKS, BlockPool
from shared.engine.engine import Engine
from shared.engine.grammars import Grammars
from shared.engine.kv_cache import TORCH_DTYPES, device_pool, pool_of
from shared.engine.layers import row_invariant
from shared.engine.model import Model
from shared.engine.model_runner import ModelRunner, Runner
from shared.engine.operations import Operations, TorchOperations
from shared.engine.parallel.model import ParallelModel
from shared.engine.parallel.operations import ParallelOperations
from shared.engine.parallel.ranks import Ranks, SingleRank
from shared.engine.parallel.shard import Shard
from shared.engine.random_weights import RandomWeights
from shared.engine.sampled_tokens import TokenSampler
from shared.engine.sampler import Sampler
from shared.engine.scheduler import Scheduler
from shared.engine.staging import HostStaging
from shared.engine.weights import WeightReader
from shared.errors import GrammarError, MissingError, SettingsError
from shared.grammar.matcher import TOKENIZER_FILE, GrammarVocabulary, grammars_available
from shared.kv_layout import KVLayout
from shared.kv_memory import KVMemory
from shared.model_config import ARCHITECTURES, ModelConfig
from shared.settings import Settings

log = logging.getLogger(__name__)

MIB = 2**20


def build_engine(
    settings: Settings,
    role: Literal["prefill", "decode"],
    checkpoint: Checkpoint | None = None,
    weights: type[WeightReader] | None = None,
) -> Engine:
    """An engine ready to step. SettingsError, ModelError or MissingError say why not.

    `checkpoint`, and `weights`, what reads it: instead of those that the settings name.
    """
    drawn = settings.random_weights
    checkpoint = checkpoint or load_checkpoint(settings.model, random_weights=drawn)
    weights = weights or (RandomWeights if drawn else WeightReader)
    device = resolve_device(settings.device)
    if role == "prefill":  # few of its steps look like decode steps: not worth capturing graphs for
        settings = replace(settings, eager=True)
    if settings.tp == 1:
        parts = build_rank(settings, checkpoint, device, SingleRank(), weights)
    elif role == "prefill":
        raise SettingsError(
            f"--tp {settings.tp}: several GPUs cannot hand KV over to another worker; "
            "run a decode worker, which computes prompts too, or --tp 1"
        )
    else:
        from shared.engine.parallel.lead import lead  # noqa: PLC0415  (it builds its own part here)

        parts = lead(settings, checkpoint, device, weights)
    pool = BlockPool(
        parts.memory.num_blocks,
        settings.block_size,
        parts.memory.generations,
        prefix_cache=settings.prefix_cache,
    )
    scheduler = Scheduler(
        pool,
        max_num_batched_tokens=settings.tokens_per_step(device.type),
        max_num_seqs=settings.running_seqs(device.type),
        max_model_len=parts.max_model_len,
    )
    return Engine(
        parts.runner,
        scheduler,
        parts.sampler,
        parts.memory,
        role,
        parts.staging,
        load_grammars(checkpoint),
    )


@dataclass(frozen=True)
class RunnerParts:
    """A runner, and what belongs to the device it runs on."""

    runner: Runner
    sampler: TokenSampler
    memory: KVMemory
    staging: HostStaging | None
    max_model_len: int
    """tokens of the longest sequence that the model and the pool allow"""


def build_rank(
    settings: Settings,
    checkpoint: Checkpoint,
    device: torch.device,
    ranks: Ranks,
    weights: type[WeightReader] = WeightReader,
) -> RunnerParts:
    """The part of one of several ranks; all of them call it, and get pools of one size."""
    set_threads(settings.threads, device)
    dtype = resolve_dtype(settings.dtype, checkpoint.config, device.type)
    shard = Shard(checkpoint.config, ranks.rank, ranks.size)
    layout = kv_layout(checkpoint, dtype, settings.block_size, settings.max_model_len, ranks.size)
    with weights(checkpoint, TORCH_DTYPES[dtype], device, shard) as reader:
        return build_runner(settings, reader, layout, ranks)


def build_runner(
    settings: Settings, reader: WeightReader, layout: KVLayout, ranks: Ranks
) -> RunnerParts:
    """The runner for the device the reader reads to."""
    config = reader.shard.config
    length = max_model_len(config, settings.max_model_len)
    if reader.device.type == "cuda":
        # A CPU engine must not pay for triton's import.
        from shared.engine.device_build import build_device_runner  # noqa: PLC0415

        return build_device_runner(settings, reader, layout, ranks)
    model = load_model(config, reader, length, TorchOperations(), ranks)
    check_arithmetic(model)
    num_blocks = ranks.least(count_blocks(settings, layout))
    kv_pool, memory, staging = create_pool(layout, num_blocks, reader.device)
    runner = ModelRunner(model, kv_pool, TiledAttention())
    return RunnerParts(runner, Sampler(), memory, staging, longest(length, layout, num_blocks))


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


def longest(length: int, layout: KVLayout, num_blocks: int) -> int:
    """Tokens of the longest sequence; says so where the pool is what limits it."""
    limit = min(length, num_blocks * layout.block_size)
    if limit < length:
        log.warning(
            "longest sequence: %d tokens (limited by the KV pool of %d blocks; the model's is %d)",
            limit,
            num_blocks,
            length,
        )
    return limit


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
    config: ModelConfig,
    reader: WeightReader,
    length: int,
    operations: Operations,
    ranks: Ranks | None = None,
) -> Model:
    """The model with its weights, for sequences of up to `length` tokens. `ranks`: where `config`
    and the reader's weights are only a part of it."""
    family = importlib.import_module(ARCHITECTURES[config.architecture].module)
    ranks = ranks or SingleRank()
    if ranks.size > 1:
        operations = ParallelOperations(operations, ranks)
    model: Model = family.Model(config, reader, length, operations)
    reader.check_all_read()
    return ParallelModel(model, ranks) if ranks.size > 1 else model


def resolve_device(wanted: str, rank: int = 0) -> torch.device:
    """auto: the first CUDA device if there is one, else the CPU. A rank takes the device that is
    so many after the wanted one."""
    if wanted == "auto":
        wanted = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise SettingsError(f"--device {wanted!r} is not auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"--device {wanted!r} is not auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        number = (device.index or 0) + rank
        if number >= torch.cuda.device_count():
            ranks = f" and --tp {rank + 1}" if rank else ""
            build = "" if torch.version.cuda else "; this torch is a build for CPUs"
            raise MissingError(
                f"--device {wanted}{ranks}: torch sees {torch.cuda.device_count()} GPUs{build}"
            )
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


def count_blocks(settings: Settings, layout: KVLayout) -> int:
    """Blocks of a pool in host memory."""
    if settings.kv_blocks:
        return settings.kv_blocks
    num_blocks = settings.kv_memory_mib * MIB // layout.block_bytes
    if num_blocks < MIN_BLOCKS:
        raise SettingsError(
            f"--kv-memory-mib leaves room for {num_blocks} KV blocks of "
            f"{layout.block_bytes} bytes, needs {MIN_BLOCKS}"
        )
    return num_blocks
