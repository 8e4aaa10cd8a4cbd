"""What every test gets: markers by folder, one torch thread, the asyncio backend.

Imports nothing that a GPU machine with only torch, triton and pytest lacks.
"""

import gc
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.e2e.hosts.namespaces import may_make_hosts
from tests.support.chromium import chromium
from tests.support.clock import ClockTests
from tests.support.interpreter import patch_once
from tests.support.measured import Measured, MeasuredLines, Record
from tests.support.skip_ledger import (
    CHROMIUM,
    COMPILER,
    GPU,
    HOSTS,
    MOUNTS,
    PROMTOOL,
    SkipLedger,
    skip,
)
from tests.support.unshared import can_run

if not any(Path("/dev").glob("nvidia[0-9]*")):
    # Before anything imports triton: without a GPU its kernels run in the interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in [name for name in os.environ if name.startswith("BATON_")]:
    del os.environ[_name]

TESTS = Path(__file__).parent
MARKED_FOLDERS = ("gpu", "e2e")
OPTIONAL: dict[str, tuple[str, Callable[[], bool], str]] = {
    "needs_chromium": (CHROMIUM, lambda: chromium() is not None, "a Chromium on PATH"),
    "needs_compiler": (
        COMPILER,
        lambda: any(map(shutil.which, ("gcc", "clang"))),
        "gcc or clang on PATH",
    ),
    "needs_hosts": (HOSTS, may_make_hosts, "ip, tc and the right to make network namespaces"),
    "needs_mounts": (MOUNTS, lambda: can_run("mount", "true"), "the right to mount"),
}
"""by marker: what the ledger calls it, whether it is here, and what it is"""
REDIS_NAMES = frozenset({"EmbeddedRedis", "RedisServers", "server_binary"})


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the services do."""
    return "asyncio"


@pytest.fixture
def measured(record_property: Record) -> Measured:
    """Records what a test measured, and judges it."""
    return Measured(record_property)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    num_gpus, no_redis = _num_gpus(items), _redis_not_here(items)
    no_promtool = _promtool_not_here(items)
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if TESTS in item.path.parents else ""
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        if folder == "gpu":
            item.add_marker("alone")
        if _is_gpu_test(item) and num_gpus < (needed := _gpus_needed(item)):
            skip(item, GPU, f"needs {needed} CUDA device(s)")
        if _starts_redis(item):
            item.add_marker("redis")
        for mark in item.iter_markers("needs_redis"):
            if mark.args[0] in no_redis:
                skip(item, mark.args[0], "needs a Redis newer than the bundled one on PATH")
        if no_promtool and item.get_closest_marker("needs_promtool"):
            skip(item, PROMTOOL, "needs promtool, of Prometheus, on PATH")
        _skip_without_tools(item)


def _skip_without_tools(item: pytest.Item) -> None:
    for marker, (name, is_here, what) in OPTIONAL.items():
        if item.get_closest_marker(marker) and not is_here():
            skip(item, name, f"needs {what}")


def _is_gpu_test(item: pytest.Item) -> bool:
    return item.get_closest_marker("gpu") is not None


def _gpus_needed(item: pytest.Item) -> int:
    """Of marks for a file and for a parameter the larger number."""
    numbers = [(*mark.args, *mark.kwargs.values()) for mark in item.iter_markers("gpu")]
    return max((int(number) for one in numbers for number in one), default=1)


def _num_gpus(items: Sequence[pytest.Item]) -> int:
    """CUDA devices torch can use; torch is imported only when a test wants to know."""
    if not any("gpu" in item.path.parts or _is_gpu_test(item) for item in items):
        return 0
    import torch  # noqa: PLC0415

    return torch.cuda.device_count()


def _starts_redis(item: pytest.Item) -> bool:
    """By the fixture of running servers, or by what its file imports."""
    file = vars(getattr(item, "module", None) or object)
    return "redis_servers" in getattr(item, "fixturenames", ()) or bool(REDIS_NAMES & file.keys())


def _redis_not_here(items: Sequence[pytest.Item]) -> frozenset[str]:
    """What the Redis of this machine lacks; where all must be exercised that is an error."""
    if not any(item.get_closest_marker("needs_redis") for item in items):
        return frozenset()
    from tests.support.redis_server import not_here  # noqa: PLC0415 a GPU machine has no Redis

    missing = not_here()
    if missing and os.environ.get("REQUIRE_REDIS"):
        raise pytest.UsageError(
            f"REQUIRE_REDIS, and there is no {' and no '.join(sorted(missing))} here"
        )
    return missing


def _promtool_not_here(items: Sequence[pytest.Item]) -> bool:
    """Where all must be exercised that is an error."""
    if not any(item.get_closest_marker("needs_promtool") for item in items):
        return False
    missing = shutil.which("promtool") is None
    if missing and os.environ.get("REQUIRE_PROMTOOL"):
        raise pytest.UsageError("REQUIRE_PROMTOOL, and there is no promtool here")
    return missing


def pytest_collection_finish() -> None:
    patch_once()
    gc.collect()
    gc.freeze()  # thousands of items, which every later collection would walk through


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipLedger(), "skip-ledger")
    config.pluginmanager.register(ClockTests(), "clock-tests")
    config.pluginmanager.register(MeasuredLines(), "measured-lines")
