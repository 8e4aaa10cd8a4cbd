"""What fits on a device, by arithmetic: weights, the KV pool, sequences, hand-overs, cost.

    usable = weights + largest step + graphs + others + KV pool

is shared.engine.loading.pool_size's sum. A start measures what a step takes; here it is an upper
estimate, so that a worker gets at least as many KV blocks as are promised. Needs no torch.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from services.cli.byte_size import MIB
from services.cli.capacity.devices import Device
from shared.engine.layers.shard import Shard
from shared.engine.loading.host_room import PROCESSES_BYTES
from shared.engine.loading.pool_size import SAMPLING_BYTES, MemoryProfile
from shared.engine.loading.room_advice import RANKS_BYTES
from shared.engine.scheduling.block_pool import MIN_BLOCKS
from shared.kv.layout import DTYPE_BYTES, KVLayout, num_blocks_for
from shared.kv.share import KVShare
from shared.model.checkpoint import Checkpoint, kv_layout, max_model_len, resolve_dtype
from shared.model.config import ModelConfig
from shared.model.parameters import num_weight_bytes
from shared.settings.groups import ComputeSettings, EngineSettings, KVSettings
from shared.settings.profiles import LARGEST
from shared.telemetry.cost import usd_per_million

WORKSPACE_BYTES = 128 * MIB
"""of matrix products, attention and sampling"""
CONTEXT_BYTES = 1024 * MIB
"""the driver's context, and kernels, on a GPU"""
LENGTHS = (1024, 4096, 8192, 32768)
MEASURED_S = {
    "mapped": ((134e6, 134e6 / 7.7e9), (1.07e9, 1.07e9 / 34e9)),
    "tcp": ((134e6, 134e6 / 2.7e9), (1.07e9, 1.07e9 / 3.1e9)),
}
"""way -> (bytes, seconds from the first read to verified) of two hand-overs, as
shared/transfer/README.md has them, of prompts that wait in prefill's cache"""


@dataclass(frozen=True)
class Question:
    """A model, a device, and the settings of a worker that shall compute it there."""

    checkpoint: Checkpoint
    device: Device
    compute: ComputeSettings
    """its max_model_len is a context that must fit; 0: the model's own, which need not"""
    kv: KVSettings
    engine: EngineSettings
    prompt: int = 0
    """tokens of a prompt whose hand-over is asked about"""
    answer: int = 0
    """tokens of its answer, for a split of workers"""
    usd_per_gpu_hour: float = 0.0
    tokens_per_s: float = 0.0
    """of a whole worker"""

    @property
    def dtype(self) -> str:
        return resolve_dtype(self.compute.dtype, self.checkpoint.config, self.device.kind)


@dataclass(frozen=True)
class Row:
    """Sequences of one length."""

    tokens: int
    kv_bytes: int
    """of one, on all its GPUs; what a hand-over of such a prompt moves"""
    sequences: int
    """whose KV the pool holds at once"""
    hand_over_s: dict[str, float] = field(default_factory=dict)
    """by way; nothing where none was measured"""


@dataclass(frozen=True)
class Capacity:
    """Of one worker. Bytes are those of one of its ranks, if nothing else is said."""

    usable_bytes: int
    weights_bytes: int
    step_bytes: int
    graphs_bytes: int
    others_bytes: int
    layout: KVLayout
    num_blocks: int
    wanted_blocks: int
    """as many must fit"""
    model_len: int
    """tokens of the longest sequence that the model, or the question, allows"""
    max_num_seqs: int
    """sequences that run at once"""
    rows: tuple[Row, ...] = ()
    usd_per_million_tokens: float = 0.0

    @property
    def room_bytes(self) -> int:
        """For the KV pool; negative where not even the rest fits."""
        kept = self.weights_bytes + self.step_bytes + self.graphs_bytes + self.others_bytes
        return self.usable_bytes - kept

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.layout.block_bytes

    @property
    def fits(self) -> bool:
        return self.num_blocks >= self.wanted_blocks and self.pool_bytes <= self.room_bytes

    @property
    def layer_token_bytes(self) -> int:
        """K and V of a token in one layer."""
        return self.layout.layer_bytes // self.layout.block_size

    @property
    def token_bytes(self) -> int:
        return self.layer_token_bytes * self.layout.num_layers

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.layout.block_size

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, if it has the pool to itself."""
        return min(self.model_len, self.num_tokens)


class Held(NamedTuple):
    """What a layer holds of a row at once, at most, in multiples of the model's sizes."""

    hidden: int
    """the layer's input, that normed, its output"""
    heads: int
    """queries, keys and values as they come, turned, mixed"""
    mlp: int
    """the first product, twice as wide, what comes of it, and the same of the layer before"""


HELD = {"cuda": Held(hidden=3, heads=3, mlp=4), "cpu": Held(hidden=6, heads=4, mlp=5)}
"""by kind of device; torch's operations on a CPU leave more between them than our kernels"""


def estimate(question: Question) -> Capacity:
    """ModelError for a model that cannot be split over --tp GPUs, SettingsError for a context
    that it does not have."""
    if question.engine.tune:  # it finds no size above those of this profile
        question = replace(question, engine=replace(question.engine, profile=LARGEST))
    config, compute = question.checkpoint.config, question.compute
    shard = Shard(config, 0, compute.tp)
    length = max_model_len(config, compute.max_model_len)
    whole = kv_layout(question.checkpoint, question.dtype, question.kv.block_size, length)
    layout = KVShare(whole, size=compute.tp).layout
    bare = _memory(question, shard, layout, length)
    num_blocks = question.kv.blocks or _num_blocks(question, bare)
    wanted = max(MIN_BLOCKS, num_blocks_for(compute.max_model_len, layout.block_size))
    capacity = replace(bare, num_blocks=num_blocks, wanted_blocks=wanted)
    usd = usd_per_million_tokens(question) if capacity.fits else 0.0
    return replace(capacity, rows=_rows(question, capacity), usd_per_million_tokens=usd)


def hand_over_s(num_bytes: float, way: str) -> float:
    """On the line through the two that were measured: what it takes at least, and a rate."""
    (few, few_s), (many, many_s) = MEASURED_S[way]
    return few_s + (num_bytes - few) * (many_s - few_s) / (many - few)


def usd_per_million_tokens(question: Question) -> float:
    """Price of an hour of all GPUs over the tokens of an hour, in millions."""
    if not question.tokens_per_s:
        return 0.0
    num_devices = question.compute.tp if question.device.on_gpu else 1
    hour_usd = question.usd_per_gpu_hour * num_devices
    return usd_per_million(hour_usd, question.tokens_per_s)


def _memory(question: Question, shard: Shard, layout: KVLayout, length: int) -> Capacity:
    """All but the pool."""
    device, tp = question.device, question.compute.tp
    max_num_seqs = question.engine.running_seqs(device.kind, layout.block_size)
    others = (CONTEXT_BYTES if device.on_gpu else PROCESSES_BYTES) + (RANKS_BYTES if tp > 1 else 0)
    weights = num_weight_bytes(shard.model, layout.dtype, tp)
    step = step_bytes(question, shard.config, length, max_num_seqs)
    usable, graphs = device.total_bytes - device.used_bytes, 0
    if device.on_gpu:
        utilization = question.kv.gpu_memory_utilization
        profile = MemoryProfile(
            device.total_bytes, utilization, others + device.used_bytes, weights, step
        )
        usable, graphs = int(device.total_bytes * utilization), profile.graphs_bytes
        others = profile.others_bytes
    return Capacity(
        usable_bytes=usable,
        weights_bytes=weights,
        step_bytes=step,
        graphs_bytes=graphs,
        others_bytes=others,
        layout=layout,
        num_blocks=0,
        wanted_blocks=0,
        model_len=length,
        max_num_seqs=max_num_seqs,
    )


def step_bytes(question: Question, part: ModelConfig, length: int, max_num_seqs: int) -> int:
    """Upper estimate of what the largest step takes next to the weights. `part`: what a rank
    computes.

    The sampler's buffers are there all the time; a layer and the logits are not at once.
    """
    engine, kind = question.engine, question.device.kind
    item = DTYPE_BYTES[question.dtype] if question.device.on_gpu else DTYPE_BYTES["float32"]
    num_rows = min(engine.tokens_per_step(kind), max_num_seqs * length)
    held = HELD[kind]
    width = held.hidden * part.hidden_size + held.mlp * part.intermediate_size
    width += held.heads * (part.num_heads + part.num_kv_heads) * part.head_dim
    logits = max_num_seqs * part.vocab_size * (2 * item + 2 * DTYPE_BYTES["float32"])
    at_once = max(num_rows * width * item, num_rows * part.hidden_size * item + logits)
    sampler = max_num_seqs * part.vocab_size * SAMPLING_BYTES
    angles = length * part.head_dim * DTYPE_BYTES["float32"]
    tables = 4 * max_num_seqs * (num_blocks_for(length, question.kv.block_size) + 16)
    return at_once + sampler + angles + 2 * tables + WORKSPACE_BYTES


def _num_blocks(question: Question, bare: Capacity) -> int:
    """As shared.engine.loading.pool_size counts them, and 0 where it would refuse."""
    size = question.kv.memory_mib * MIB if not question.device.on_gpu else bare.room_bytes
    return max(0, size // bare.layout.block_bytes)


def _rows(question: Question, capacity: Capacity) -> tuple[Row, ...]:
    asked = {length for length in LENGTHS if length <= capacity.model_len}
    asked |= {capacity.model_len} | ({question.prompt} if question.prompt else set())
    return tuple(_row(question, capacity, tokens) for tokens in sorted(asked))


def _row(question: Question, capacity: Capacity, tokens: int) -> Row:
    layout, tp = capacity.layout, question.compute.tp
    num_blocks = num_blocks_for(tokens, layout.block_size)
    kv_bytes = num_blocks * layout.block_bytes * tp
    measured = question.device.on_gpu and tp == 1
    times = {way: hand_over_s(kv_bytes, way) for way in MEASURED_S} if measured else {}
    return Row(tokens, kv_bytes, capacity.num_blocks // num_blocks, times)
