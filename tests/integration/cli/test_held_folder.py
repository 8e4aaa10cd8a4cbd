"""Temporary folders that are removed with their process, or by the next that makes one."""

import fcntl
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.held_folder import held_folder

PREFIX = "held-"
HOLD = f"""
import time
from shared.held_folder import held_folder
with held_folder({PREFIX!r}) as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def test_a_killed_process_leaves_its_folder_to_the_next(tmp: Path) -> None:
    """The folders of those that live, of other prefixes and files stay."""
    (tmp / "other").mkdir()
    (tmp / f"{PREFIX}file").touch()
    (tmp / f"{PREFIX}link").symlink_to(tmp / "other")
    kept = {tmp / "other", tmp / f"{PREFIX}file", tmp / f"{PREFIX}link"}
    with (
        held_folder(PREFIX) as ours,
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True
        ) as holder,
    ):
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        assert ours.stat().st_mode & 0o777 == 0o700
        with held_folder(PREFIX) as another:
            assert set(tmp.iterdir()) == {*kept, ours, theirs, another}
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert theirs.exists()
        with held_folder(PREFIX) as another:
            assert set(tmp.iterdir()) == {*kept, ours, another}
    assert set(tmp.iterdir()) == kept


def test_one_that_is_removed_before_it_is_held_is_made_again(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes it for dead."""
    flock, removed = fcntl.flock, list[Path]()

    def swept_meanwhile(lock: int, how: int) -> None:
        if not removed:
            removed.extend(tmp.iterdir())
            removed[0].rmdir()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", swept_meanwhile)
    with held_folder(PREFIX) as folder:
        assert folder not in removed
        assert list(tmp.iterdir()) == [folder]
