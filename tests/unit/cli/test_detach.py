"""`up --detach`: what it leaves on the disk, and what it says at the end."""

import os
from pathlib import Path

import pytest

from services.cli.cluster.detach import NUM_KEPT_LOGS, _follow, remove_old_logs
from services.cli.cluster.run_file import write_record


def test_only_log_folders_of_running_systems_and_the_last_few_stay(tmp_path: Path) -> None:
    folders = [tmp_path / f"log-{at}" for at in range(NUM_KEPT_LOGS + 3)]
    for at, folder in enumerate(folders):
        folder.mkdir()
        (folder / "up.log").write_text("x")
        os.utime(folder, (at, at))
    (tmp_path / "other").mkdir()
    write_record(tmp_path, 8000, "http://127.0.0.1:8000", folders[1])
    remove_old_logs(tmp_path)
    left = {path for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {folders[1], *folders[-NUM_KEPT_LOGS:], tmp_path / "other"}


def test_the_command_that_stops_it_names_its_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"say ready http://127.0.0.1:81\nready 81\n")
    os.close(writing)
    assert _follow(reading, tmp_path) == 0
    assert capsys.readouterr().out.endswith("stop it with `baton down --port 81`\n")
