"""The last line of a run: what was skipped for want of a machine's part, and nothing else is."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.sources import ROOT
from tests.support.skip_ledger import LEDGER

CONFTEST = """
import pytest
from tests.support.skip_ledger import SkipLedger, skip

def pytest_configure(config):
    config.pluginmanager.register(SkipLedger())

def pytest_collection_modifyitems(items):
    for item in items:
        if "newer" in item.name:
            skip(item, "Redis 7", "none here")
        if "query" in item.name:
            skip(item, "promtool", "none here")
        if "page" in item.name:
            skip(item, "Chromium", "none here")
        if "gpu" in item.name:
            skip(item, "GPU", "none here")
"""
ALLOWED = """
def test_newer(): assert False
def test_gpu(): assert False
def test_query(): assert False
def test_page(): assert False
def test_runs(): pass
"""
OTHER = "import pytest\ndef test_other(): pytest.skip('no reason')\n"


def run(folder: Path, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), LEDGER: str(folder / "ledger")}
    return subprocess.run(  # noqa: S603
        [*command, "-q", *options, str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "with workers"])
def test_what_may_be_skipped_is_named_and_counted(tmp_path: Path, options: tuple[str, ...]) -> None:
    for _ in range(2):
        result = run(tmp_path, ALLOWED, *options)
        assert result.returncode == 0, result.stdout
        last = result.stdout.splitlines()[-1]
        assert last.startswith(f"not exercised: Chromium (1 tests), {_told(1)}")
        assert "for Redis: apt-get install redis-server" in last
        assert "for promtool: apt-get install prometheus" in last
        assert "for Chromium: apt-get install chromium" in last
    total = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "tests.support.skip_ledger", tmp_path / "ledger"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert _told(2) in total.stdout


def _told(num: int) -> str:
    return ", ".join(f"{name} ({num} tests)" for name in ("GPU", "Redis 7", "promtool"))


def test_any_other_skipped_test_fails_the_run(tmp_path: Path) -> None:
    result = run(tmp_path, ALLOWED + OTHER)
    assert result.returncode == 1
    assert "yet skipped: test_it.py::test_other" in result.stdout
