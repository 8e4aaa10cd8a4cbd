"""Serves requests on a GPU that computes nothing, and prints what would be compiled meanwhile.

Triton gets a driver of a device that is not there, and instead of being compiled a kernel is noted
under the key that Triton would look it up by: types, alignments and constants. So the host's side
of a GPU worker runs here as it does there, with tensors on the CPU. In a process of its own: Triton
must be imported without its interpreter.

    serving_launches [bare]   `bare`: without a warm-up
    serving_launches layer    instead: what one layer more of a prompt step costs the host
    serving_launches listed [greedy]
                              instead: what a worker's start compiles ahead; `greedy`: that of
                              one case, if tokens were chosen in no other way
"""

import hashlib
import json
import multiprocessing
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from kernels.attention.prefill_plan import PrefillTile, prefill_tile
from kernels.digest.block_digest import NUM_PIECES, WORD_BYTES, block_digests
from shared.engine.engine import Engine
from shared.engine.handover.kv_pool import host_pool
from shared.engine.layers import paged_attention
from shared.engine.layers.device_traits import DeviceTraits
from shared.engine.layers.kv_cache import TORCH_DTYPES, device_pool
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.loading import warm_up as warming
from shared.engine.loading.device_form import DeviceForm, DeviceModel
from shared.engine.loading.start_kernels import start_kernels
from shared.engine.loading.warm_up import warm_up
from shared.engine.parallel.ranks import SingleRank
from shared.engine.running.decode_graphs import DecodeGraphs
from shared.engine.running.device_runner import DeviceRunner
from shared.engine.running.empty_steps import prompt_step
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import SequenceSpec
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from shared.model.checkpoint import Checkpoint, kv_layout, random_checkpoint
from shared.model.shapes import SHAPES
from shared.protocol import Attempt, Sampling, Work
from tests.support.models.tiny_model import TINY, TINY_GPT2

CPU = torch.device("cpu")
NUM_BLOCKS = 1500
NUM_WAVES = 8
compiled: list[str] = []
"""kernels, in order; each as often as there are variants of it"""
keys: set[str] = set()
"""of Triton's cache: where it would have looked for them"""
repeated: list[str] = []
"""kernels, as often as they were launched without asking Triton"""


@dataclass(frozen=True)
class Case:
    """A model on a device under some settings."""

    raw: Mapping[str, Any]
    dtype: str
    capability: tuple[int, int]
    block_size: int
    max_seqs: int
    max_tokens: int
    longest: int

    @property
    def checkpoint(self) -> Checkpoint:
        return random_checkpoint(Path("none"), "none", self.raw)

    @property
    def form(self) -> DeviceForm:
        """On a GPU of 132 multiprocessors."""
        return DeviceForm(
            config=self.checkpoint.config,
            share=KVShare(kv_layout(self.checkpoint, self.dtype, self.block_size)),
            length=self.longest,
            max_tokens=self.max_tokens,
            max_seqs=self.max_seqs,
            traits=DeviceTraits(self.capability, 132),
        )


def shape(name: str) -> dict[str, Any]:
    """One layer of a real model, with a small vocabulary."""
    return {**SHAPES[name], "num_hidden_layers": 1, "vocab_size": 4000}


MISTRAL = {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 40}
QWEN2 = {**TINY, "architectures": ["Qwen2ForCausalLM"], "head_dim": 80}
CASES = {
    "qwen3": Case(shape("qwen3-0.6b"), "bfloat16", (9, 0), 16, 256, 2048, 2000),
    "llama": Case(shape("llama-3.1-8b"), "bfloat16", (9, 0), 16, 64, 512, 1000),
    "long": Case(shape("llama-3.1-8b"), "bfloat16", (9, 0), 16, 3, 2048, 20_000),
    "a100": Case(shape("llama-3.1-8b"), "bfloat16", (8, 0), 16, 100, 512, 1000),
    "exact": Case(TINY, "float32", (9, 0), 16, 20, 100, 500),
    "windows": Case(MISTRAL, "float16", (9, 0), 32, 37, 300, 403),
    "biased": Case(QWEN2, "bfloat16", (9, 0), 64, 256, 1000, 100),
    "gpt2": Case(TINY_GPT2, "float16", (10, 0), 16, 33, 256, 300),
}


@dataclass(frozen=True)
class Device:
    """Triton's driver of a GPU that nothing is launched on. Kernels are compiled for its number."""

    number: int
    capability: tuple[int, int]

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        major, minor = self.capability
        return GPUTarget("cuda", 10 * major + minor, 32)


class Launched:
    """What a compiled kernel is to Triton and to kernels.launching.repeated_launch."""

    function = packed_metadata = None

    def __init__(self, kernel: Any, key: str) -> None:
        self._kernel = kernel
        self._key = key

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return self._repeat

    def _repeat(self, *arguments: object) -> None:
        """What Triton would have made of these arguments is this kernel."""
        known, _, _, _, bind = self._kernel.device_caches[driver.active.get_current_device()]
        assert known[self._key] is self
        specialization = bind(*arguments)[1]
        assert self._key.startswith(str(specialization)), (self._key, specialization)
        repeated.append(self._kernel.__name__)

    def launch_metadata(self, *_: object) -> None:
        return None

    def run(self, *_: object) -> None:
        return None


class Captured:
    """A graph of a step."""

    def replay(self) -> None:
        return None


def stub_device() -> None:
    """What Triton and torch would need one for, for the life of the process."""

    def note(
        kernel: Any, key: str, signature: Any, number: int, constants: Any, options: Any, *rest: Any
    ) -> Launched:
        compiled.append(kernel.__name__)
        source = kernel.ASTSource(kernel, signature, constants, rest[0])
        environment = jit.get_cache_invalidating_env_vars()
        backend = kernel.device_caches[number][3]
        keys.add(short(jit.get_cache_key(source, backend, options, environment)))
        launched = kernel.device_caches[number][0][key] = Launched(kernel, key)
        return launched

    stubs: tuple[tuple[Any, str, Any], ...] = (
        (paged_attention, "prefill_tile", gpu_tile),
        (jit.JITFunction, "_do_compile", note),
        (DecodeGraphs, "_capture", lambda self, step: step() or Captured()),
        # A token id that no kernel wrote must be one all the same.
        (torch, "empty", torch.zeros),
        # The vendor's products: nothing of ours is compiled for them, and a CPU's take long.
        (torch, "mm", lambda rows, weight, out: out),
        (torch.Tensor, "addmm_", lambda self, rows, weight: self),
        (F, "linear", lambda rows, weight, bias=None: zeros(len(rows), len(weight), rows.dtype)),
    )
    for owner, name, stub in stubs:
        setattr(owner, name, stub)


def short(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def zeros(num_rows: int, num_columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Beginning of one buffer for all: nobody writes into a product."""
    size = num_rows * num_columns
    if dtype not in buffers or buffers[dtype].numel() < size:
        buffers[dtype] = torch.zeros(size, dtype=dtype)
    return buffers[dtype][:size].view(num_rows, num_columns)


buffers: dict[torch.dtype, torch.Tensor] = {}


def gpu_tile(kv_pool: torch.Tensor, capability: tuple[int, int]) -> PrefillTile:
    """What is chosen there, where a CPU has a tile of its own."""
    return prefill_tile(kv_pool.to("meta"), capability)


class Zeros(RandomWeights):
    """Drawing takes longer than anything else here."""

    def _drawn(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._dtype)


def make_engine(case: Case, *, warm: bool) -> tuple[Engine, DeviceRunner]:
    """As shared.engine.loading.device_rank does it, but for the memory."""
    form = case.form
    with Zeros(case.checkpoint, TORCH_DTYPES[case.dtype], CPU) as reader:
        model = DeviceModel(form, reader, SingleRank())
    if warm:
        model.runner(device_pool(form.layout, 1, CPU), eager=True).run_eagerly(form.largest_step())
    runner = model.runner(device_pool(form.layout, NUM_BLOCKS, CPU), eager=False)
    sampler = form.sampler(CPU)
    if warm:
        warm_up(runner, sampler, case.max_tokens, case.longest, case.block_size)
        assert runner.graphs.missing == runner.graphs.sizes, "captured before anybody needs it"
        launch_digests(runner.kv_pool, form.layout)
    memory = KVMemory.create(form.layout, NUM_BLOCKS)
    scheduler = Scheduler(
        BlockPool(NUM_BLOCKS, case.block_size, memory.generations),
        max_num_batched_tokens=case.max_tokens,
        max_num_seqs=case.max_seqs,
        max_model_len=case.longest,
    )
    return Engine(runner, scheduler, sampler, host_pool(memory), "decode"), runner


def launch_digests(kv_pool: torch.Tensor, layout: KVLayout) -> None:
    """As a mover does when it is made."""
    bounds = torch.tensor(layer_groups(layout).bounds(WORD_BYTES))
    ids, found = bounds.new_zeros(1), bounds.new_zeros(1, len(bounds) - 1, NUM_PIECES)
    block_digests(kv_pool.flatten(1).view(torch.uint8), bounds, 0, ids, found)


def requests(case: Case, source: random.Random) -> Iterator[SequenceSpec]:
    """Without end."""
    number = 0
    while True:
        number += 1
        length = source.randint(
            1, min(case.longest - 30, source.choice([20, 300, 1500, case.longest]))
        )
        sampling = Sampling(
            source.randint(1, 20),
            temperature=source.choice([0.0, 0.6]),
            top_p=source.choice([1.0, 1.0, 0.9]),
            top_k=source.choice([0, 0, 5]),
            min_p=source.choice([0.0, 0.0, 0.1]),
            repetition_penalty=source.choice([1.0, 1.0, 1.2]),
            logit_bias=source.choice([(), ((1, 2.0),)]),
            logprobs=source.choice([-1, -1, -1, 2]),
            seed=number,
            ignore_eos=True,
        )
        prompt = tuple(source.choices(range(100), k=length))
        attempt = Attempt(str(number), 0)
        yield SequenceSpec(Work(attempt, prompt, length, bytes(32), sampling), (), "full", "agg")


def serve(case: Case, engine: Engine) -> int:
    """Waves of one or many; the number of steps."""
    source = random.Random(5)  # noqa: S311 (nothing secret)
    arriving = requests(case, source)
    num_steps = 0
    for _ in range(NUM_WAVES):
        for _ in range(source.choice([1, 3, 40, case.max_seqs])):
            engine.add(next(arriving))
        for _ in range(source.choice([5, 30, 60])):
            if engine.has_work:
                engine.step()
                num_steps += 1
    return num_steps


def calls_of_step(num_layers: int) -> Counter[str]:
    """Of a prompt step whose kernels are compiled and whose number of tokens is new: calls in
    Python and into C, and how many of them look a kernel up in Triton."""
    raw = {**SHAPES["qwen3-0.6b"], "num_hidden_layers": num_layers, "vocab_size": 4000}
    case = replace(CASES["qwen3"], raw=raw)
    _, runner = make_engine(case, warm=False)
    runner.run_eagerly(prompt_step(1000, 1, 1000, case.block_size))
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        calls["calls"] += event in {"call", "c_call"}
        calls["looked_up"] += event == "call" and frame.f_code is jit.JITFunction.run.__code__

    step = prompt_step(1000 - num_layers, 1, 1000, case.block_size)
    sys.setprofile(count)
    runner.run_eagerly(step)
    sys.setprofile(None)
    return calls


def print_layer() -> None:
    driver.set_active(Device(0, (9, 0)))
    few, many = calls_of_step(2), calls_of_step(6)
    sys.stdout.write(json.dumps({name: (many[name] - few[name]) / 4 for name in many}) + "\n")


def print_listed(names: Iterable[str]) -> None:
    """Each in a process of its own, as where it matters."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for line in pool.imap(listed, names):
            sys.stdout.write(json.dumps(line) + "\n")


def listed(name: str) -> dict[str, Any]:
    return {"case": name, "keys": [short(key) for key in start_kernels(CASES[name].form)]}


def main(*, warm: bool) -> None:
    for number, (name, case) in enumerate(CASES.items()):
        driver.set_active(Device(number, case.capability))
        compiled.clear()
        repeated.clear()
        keys.clear()
        engine, runner = make_engine(case, warm=warm)
        num_warm = len(compiled)
        engine.rehearse()
        assert not runner.graphs.missing
        if warm:
            engine.try_out()
        num_steps = serve(case, engine)
        line = {"case": name, "num_warm": num_warm, "num_steps": num_steps}
        line |= {"repeated": sorted(set(repeated)), "keys": sorted(keys)}
        sys.stdout.write(json.dumps(line | {"late": compiled[num_warm:]}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "greedy" in sys.argv[1:]:
        warming.SAMPLINGS = warming.SAMPLINGS[:1]
    if "listed" in sys.argv[1:]:
        print_listed(CASES if "greedy" not in sys.argv else ["exact"])
        sys.exit()
    stub_device()
    if "layer" in sys.argv[1:]:
        print_layer()
    else:
        main(warm="bare" not in sys.argv[1:])
