"""The checks of this machine, gathered and judged one after the other."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.cli.cluster.local_cell import this_machine
from services.cli.cluster.plan import make_plan
from services.cli.cluster.run_file import RunRecord
from services.cli.doctor.finding import Finding, ok
from services.cli.doctor.folders import check_folders, check_transfer_folder
from services.cli.doctor.gpu import GpuFacts, gather_gpu, judge_gpu
from services.cli.doctor.kernel_cache import gather_kernel_cache, judge_kernel_cache
from services.cli.doctor.limits import gather_limits, judge_limits
from services.cli.doctor.model_size import Memory
from services.cli.doctor.packages import (
    gather_packages,
    judge_packages,
    judge_worker_packages,
)
from services.cli.doctor.ports import check_ports, check_worker_ports
from shared.device_type import device_type
from shared.engine.loading.host_memory import free_memory
from shared.errors import SettingsError
from shared.settings.groups import Settings

DEVICE = re.compile(r"auto|cpu|cuda(?::(\d+))?")


@dataclass(frozen=True)
class MachineReport:
    findings: tuple[Finding, ...]
    device_type: str
    memory: Memory | None
    """of what a worker computes on"""


def check_machine(
    settings: Settings, running: Sequence[RunRecord], worker: str = ""
) -> MachineReport:
    """`running`: the cells of this user here, whose memory and ports are not held against it.
    `worker`: the role of the one process that shall run here; empty: those of `baton up`."""
    compute, limits = settings.compute, settings.limits
    first = first_gpu(compute.device)
    present = any(Path("/dev").glob("nvidia[0-9]*"))
    gpu = gather_gpu(wanted=device_type(compute.device) == "cuda")
    on_gpu = _computes_on_gpu(compute.device, gpu)
    packages = gather_packages()
    found = (
        judge_worker_packages(packages)
        if worker
        else judge_packages(packages, embedded_redis=settings.cell.embedded_redis)
    )
    found += judge_gpu(gpu, wanted=on_gpu, present=present, first=first, tp=compute.tp)
    if on_gpu:
        found += judge_kernel_cache(gather_kernel_cache(os.environ))
    else:
        found.append(ok("kernels", "none are compiled for a CPU"))
    max_clients = 0 if worker else limits.max_live_requests
    found += judge_limits(gather_limits(), max_clients=max_clients, tp=compute.tp)
    found += check_folders(os.environ)
    found.append(check_transfer_folder(settings.handover.transfer_dir, settings.handover.transport))
    if worker:
        found += check_worker_ports(settings.network.host, settings.worker)
    else:
        found += check_ports(settings.network, settings.worker, running)
    memory = (
        _memory_of_gpu(settings, gpu, bool(running))
        if on_gpu
        else _memory_of_host(compute.tp, alone=bool(running or worker))
    )
    return MachineReport(tuple(found), "cuda" if on_gpu else "cpu", memory)


def first_gpu(device: str) -> int:
    """The number of the GPU that --device names, 0 where it names none; SettingsError for what is
    no device."""
    named = DEVICE.fullmatch(device)
    if named is None:
        raise SettingsError(f"--device {device!r} is not auto, cpu, cuda or cuda:N")
    return int(named[1] or 0)


def _computes_on_gpu(device: str, gpu: GpuFacts) -> bool:
    """What --device auto finds depends on the build of torch."""
    for_cpus = bool(gpu.torch) and gpu.built_for is None
    return device_type(device) == "cuda" and not (device == "auto" and for_cpus)


def _memory_of_host(tp: int, *, alone: bool) -> Memory:
    """For as many workers as `baton up` starts, or for one that is `alone`."""
    total, free = free_memory()
    tps = (tp,) if alone else make_plan({"device": "cpu", "tp": tp}, {}, this_machine()).tps
    return Memory(total, free, on_gpu=False, tps=tps)


def _memory_of_gpu(settings: Settings, gpu: GpuFacts, cell_runs: bool) -> Memory | None:
    first = first_gpu(settings.compute.device)
    gpus = gpu.gpus[first : first + settings.compute.tp]
    if not gpus:
        return None
    tightest = min(gpus, key=lambda each: each.free_bytes)
    free = tightest.total_bytes if cell_runs else tightest.free_bytes
    return Memory(tightest.total_bytes, free, on_gpu=True)
