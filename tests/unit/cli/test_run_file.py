"""The record of a running `baton up`: private, and never about another process."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.cluster.run_file import (
    RunRecord,
    live_records,
    read_record,
    remove_record,
    start_ticks,
    terminate,
    write_record,
)
from services.cli.down import choose
from shared.errors import BatonError, NoGatewayError, SettingsError
from shared.runtime_folder import runtime_folder


def test_folder_is_private(tmp_path: Path) -> None:
    folder = runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert folder == tmp_path / "baton"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == folder


def test_a_folder_in_a_volume_of_a_group_is_private_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o2777)  # as /tmp of a pod with fsGroup
    folder = runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert folder.stat().st_mode & 0o7777 == 0o2700
    assert runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == folder


@pytest.mark.parametrize("kind", ["open to others", "a link"])
def test_folder_of_somebody_else_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "baton"
    if kind == "a link":
        target = tmp_path / "target"
        target.mkdir(mode=0o700)
        folder.symlink_to(target)
    else:
        folder.mkdir()
        folder.chmod(0o755)
    with pytest.raises(BatonError, match="not a private folder"):
        runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_unusable_runtime_dir_falls_back(tmp_path: Path) -> None:
    folder = runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path / "absent")})
    assert folder.name == f"baton-{os.getuid()}"


def test_where_nothing_can_be_written_there_is_no_folder_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(BatonError, match="TMPDIR names one"):
        runtime_folder({})


def test_record_is_read_back_and_removed(tmp_path: Path) -> None:
    record = write_record(tmp_path, 8000, "http://127.0.0.1:8000")
    assert record.alive
    assert live_records(tmp_path) == [record]
    remove_record(tmp_path, replace(record, start_ticks=record.start_ticks + 1))
    assert read_record(tmp_path, 8000) == record
    remove_record(tmp_path, record)
    assert live_records(tmp_path) == []


def test_what_leads_into_a_cell_is_for_its_user_alone(tmp_path: Path) -> None:
    ways_in = {"admin_url": "http://127.0.0.1:9", "redis": "unix://:word@/s", "cell_secret": "s"}
    record = write_record(tmp_path, 8000, "http://127.0.0.1:8000", None, **ways_in)
    assert read_record(tmp_path, 8000) == record
    assert (record.redis, record.cell_secret) == ("unix://:word@/s", "s")
    assert (tmp_path / "up-8000.json").stat().st_mode & 0o077 == 0
    assert [port for port in (0, 9, 8000, 8001) if record.uses(port)] == [9, 8000]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"port": 1}'])
def test_damaged_file_is_no_record(tmp_path: Path, content: str) -> None:
    (tmp_path / "up-8000.json").write_text(content)
    assert live_records(tmp_path) == []


def test_ended_process_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(process.pid) is None  # a zombie
    process.wait()
    assert start_ticks(process.pid) is None


def test_terminate_spares_a_process_with_another_start_time() -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    assert terminate(RunRecord(1, "", os.getpid(), ticks + 1)) is None


def test_choose() -> None:
    first, second = RunRecord(1, "", 10, 0), RunRecord(2, "", 20, 0)
    assert choose([first], None, every=False) == [first]
    assert choose([first, second], 2, every=False) == [second]
    assert choose([first, second], None, every=True) == [first, second]
    assert choose([], None, every=True) == []
    with pytest.raises(SettingsError):
        choose([first, second], None, every=False)
    for records, port in (([], None), ([first], 7)):
        with pytest.raises(NoGatewayError):
            choose(records, port, every=False)
