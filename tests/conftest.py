"""What every test gets: markers by folder, one torch thread, the asyncio backend.

Imports nothing that a GPU machine with only torch, triton and pytest lacks.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clock import ClockTests
from tests.interpreter import patch_once
from tests.measured import Measured, MeasuredLines, Record

if not any(Path("/dev").glob("nvidia[0-9]*")):
    # Before anything imports triton: without a GPU its kernels run in the interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in [name for name in os.environ if name.startswith("BATON_")]:
    del os.environ[_name]

TESTS = Path(__file__).parent
MARKED_FOLDERS = ("gpu", "e2e")


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the services do."""
    return "asyncio"


@pytest.fixture
def measured(record_property: Record) -> Measured:
    """Records what a test measured, and judges it."""
    return Measured(record_property)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    num_gpus = _num_gpus(items)
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if TESTS in item.path.parents else ""
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        if folder == "gpu":
            item.add_marker("alone")
        if _is_gpu_test(item) and num_gpus < (needed := _gpus_needed(item)):
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA device(s)"))


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


def pytest_collection_finish() -> None:
    patch_once()


class SkipLedger:
    """Counts skipped GPU tests for the last line; any other skip fails the run."""

    def __init__(self) -> None:
        self.num_gpu = 0
        self.others: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            if "gpu" in report.keywords:
                self.num_gpu += 1
            else:
                self.others.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.others.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.others and not hasattr(session.config, "workerinput"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if hasattr(config, "workerinput"):
            return
        for nodeid in self.others:
            sys.stdout.write(f"only GPU tests may be skipped, this is none: {nodeid}\n")
        sys.stdout.write(f"GPU tests skipped: {self.num_gpu}\n")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipLedger(), "skip-ledger")
    config.pluginmanager.register(ClockTests(), "clock-tests")
    config.pluginmanager.register(MeasuredLines(), "measured-lines")
