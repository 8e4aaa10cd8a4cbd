"""How fast scattered blocks are copied between the pools of a pair."""

from collections.abc import Mapping
from typing import Any

from services.cli.bench.handover.copies import NUM_BACK_TO_BACK
from services.cli.bench.kernels.runs import bench_lines
from services.cli.bench.measure.findings import Finding
from services.cli.bench.measure.progress_line import announce
from services.cli.cluster.plan import Plan
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.model.checkpoint import kv_layout, load_checkpoint, resolve_dtype

MIB = 2**20
PROGRAM = "services.cli.bench.handover.copies"
GPU_AMOUNTS, CPU_AMOUNTS, QUICK_AMOUNTS = "16,128", "16,64", "1,4"
"""MiB of one batch"""
THAT_MAP = ("auto", "mapped")
GOALS: Mapping[tuple[str, int, int], float] = {
    ("blocks", 16, 1): 0.75,
    ("blocks", 128, 1): 0.9,
    ("layer groups", 16, 1): 0.55,
    ("layer groups", 16, NUM_BACK_TO_BACK): 0.9,
}
"""unit, MiB of a batch, batches -> share of the rate of one contiguous copy, between GPUs"""


def measure_copies(pair: Plan, *, quick: bool) -> list[Finding]:
    """While no cell runs. None where the pair's workers do not map each other."""
    if pair.settings.handover.transport not in THAT_MAP:
        return []
    on_gpus = pair.num_gpus > 0
    amounts = QUICK_AMOUNTS if quick else GPU_AMOUNTS if on_gpus else CPU_AMOUNTS
    layout = _layout(pair)
    group_bytes = layer_groups(layout).num_bytes(GroupRange(0, 1))
    devices = [_device(device, on_gpus=on_gpus) for device in (pair.devices[0], pair.devices[-1])]
    announce("copies between the pools")
    flags = [*devices, f"{layout.block_bytes}", f"{group_bytes}", amounts]
    return [finding(line, on_gpus=on_gpus) for line in bench_lines(PROGRAM, flags)]


def finding(line: Mapping[str, Any], *, on_gpus: bool) -> Finding:
    """Of one line of the program."""
    unit, batches, num_bytes = line["unit"], line["batches"], line["num_bytes"]
    name = f"{unit} of {line['piece_bytes'] / 1024:.4g} KiB, {num_bytes / MIB:.4g} MiB"
    if batches > 1:
        name += f" {batches} times, back to back"
    rate, whole = line["gb_per_s"], line["contiguous_gb_per_s"]
    goal = GOALS.get((unit, line["mib"], batches)) if on_gpus else None
    note = f"{name}: {rate:.3g} GB/s, as one contiguous copy {whole:.3g} (both p50)"
    return Finding("copy", name, rate / whole, "x", goal, ">=", n=line["n"], note=note)


def _layout(pair: Plan) -> KVLayout:
    settings = pair.settings
    checkpoint = load_checkpoint(settings.model.name, random_weights=settings.model.random_weights)
    device_type = "cuda" if pair.num_gpus else "cpu"
    dtype = resolve_dtype(settings.compute.dtype, checkpoint.config, device_type)
    return kv_layout(checkpoint, dtype, settings.kv.block_size)


def _device(named: str, *, on_gpus: bool) -> str:
    """As torch names one."""
    if named not in ("auto", "cuda"):
        return named
    return "cuda:0" if on_gpus else "cpu"
