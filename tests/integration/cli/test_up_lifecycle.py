"""`baton up` as a process with stand-in children and a real embedded Redis: start, restart, end."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from services.cli.cluster.restart_policy import DELAY_S
from shared.state.embedded import find_server
from tests.integration.cli.up_process import (
    FakeBaton,
    UpProcess,
    alive,
    command_line,
    until,
    workers,
)
from tests.support.measured import Measured


@pytest.fixture
def fake(tmp_path: Path) -> FakeBaton:
    return FakeBaton(tmp_path)


def test_ready_when_every_worker_is_and_a_signal_stops_everything(
    fake: FakeBaton, measured: Measured
) -> None:
    with fake.up("--topology", "pd", "--prefill", "2", "--decode", "1") as up:
        url = up.wait_ready()
        assert [worker["id"] for worker in workers(url)] == ["decode-0", "prefill-0", "prefill-1"]
        below = up.descendants()
        roles = [line[3] for pid in below if "serve" in (line := command_line(pid))]
        assert sorted(roles) == ["decode", "gateway", "prefill", "prefill"]
        assert any("redis" in " ".join(command_line(pid)) for pid in below)
        started_s = time.monotonic()
        up.signal(signal.SIGTERM)
        assert up.wait() == 0
        measured.at_most("stopped after", time.monotonic() - started_s, 10, "s")
        until(lambda: not any(map(alive, below)), 2)
    assert list((fake.folder / "run" / "baton").glob("up-*")) == []


def test_command_lines_read_baton_serve_and_hide_secrets(fake: FakeBaton) -> None:
    with fake.up(**{"BATON_KV_SECRET": "very-secret"}) as up:
        url = up.wait_ready()
        lines = [" ".join(command_line(pid)) for pid in up.descendants()]
        for role in ("gateway", "prefill", "decode"):
            assert any(f"/baton serve {role} " in line for line in lines)
        assert "very-secret" not in " ".join(lines)
        assert all(worker["has_secret"] for worker in workers(url))
        cells = {worker["cell"] for worker in workers(url)}
        assert len(cells) == 1 and "" not in cells, "up makes one secret for the cell"


def test_ready_also_where_clients_need_a_key_that_up_does_not_have(fake: FakeBaton) -> None:
    with fake.up(**{"BATON_API_KEYS_FILE": "keys.toml"}) as up:
        up.wait_ready()


def test_nothing_survives_kill_9_of_up(fake: FakeBaton) -> None:
    with fake.up() as up:
        up.wait_ready()
        below = up.descendants()
        assert len(below) >= 6
        up.signal(signal.SIGKILL)
        up.wait()
        until(lambda: not any(map(alive, below)), 5)


def test_dead_worker_starts_again_as_a_new_process(fake: FakeBaton) -> None:
    with fake.up() as up:
        url = up.wait_ready()
        before = workers(url)
        victim = before[0]
        started_s = time.monotonic()
        signal_pid(victim["pid"])
        up.wait_line("decode-0 was ended by SIGKILL; starting it again")
        until(lambda: len(workers(url)) == 2 and workers(url)[0]["pid"] != victim["pid"])
        assert time.monotonic() - started_s >= DELAY_S
        assert workers(url)[1] == before[1]
        assert not alive(victim["engine"])


def test_dead_gateway_gets_its_port_back(fake: FakeBaton) -> None:
    with fake.up() as up:
        url = up.wait_ready()
        gateway = next(pid for pid in up.descendants() if "gateway" in command_line(pid))
        signal_pid(gateway)
        up.wait_line("gateway was ended by SIGKILL; starting it again")
        until(lambda: _answers(url))


def test_never_leaves_a_dead_worker_dead(fake: FakeBaton) -> None:
    with fake.up("--restart", "never") as up:
        url = up.wait_ready()
        signal_pid(workers(url)[0]["pid"])
        up.wait_line("decode-0 was ended by SIGKILL; it is not started again")
        assert [worker["id"] for worker in workers(url)] == ["prefill-0"]


def test_worker_that_cannot_start_ends_up_with_its_own_error(fake: FakeBaton) -> None:
    failures = json.dumps({"decode-0": [2, "baton: error: no such model: /nowhere"]})
    with fake.up(FAKE_FAILURES=failures) as up:
        assert up.wait() == 2
        assert up.process.stderr is not None
        errors = up.process.stderr.read().decode()
    assert errors.count("baton: error:") == 1
    assert "baton: error: no such model: /nowhere\n" in errors


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--model", "/nope"), "'/nope' is neither a directory nor a hub id"),
        (("--model", "tiny"), "add --random-weights"),
        (("--model", "demo", "--random-weights"), "not a shape; shapes are llama-3.1-8b"),
        (("--max-model-len", "99999"), "--max-model-len 99999 is above the model's 4096"),
        (("--model", "owner/name"), "`hf download owner/name`"),
    ],
)
def test_a_model_nobody_could_serve_is_said_before_anything_starts(
    fake: FakeBaton, flags: tuple[str, ...], says: str
) -> None:
    cache = {"HF_HOME": str(fake.folder), "HF_HUB_OFFLINE": "1"}
    result = fake.run("up", *flags, "--port", "0", **cache)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("baton: error: ")
    assert says in result.stderr


def test_worker_that_crashes_while_starting_shows_its_log(fake: FakeBaton) -> None:
    failures = json.dumps({"decode-0": [1, "Traceback: something broke"]})
    with fake.up(FAKE_FAILURES=failures) as up:
        assert up.wait() == 1
        assert up.process.stderr is not None
        errors = up.process.stderr.read().decode()
    assert "something broke" in errors
    assert "baton: error: decode-0 ended with status 1 before it was ready\n" in errors


def test_signal_while_starting_stops_everything(fake: FakeBaton) -> None:
    with fake.up(FAKE_SLOW="decode-0") as up:
        up.wait_line("prefill-0 is ready")
        below = up.descendants()
        up.signal(signal.SIGINT)
        assert up.wait() == 0
        until(lambda: not any(map(alive, below)), 2)


def test_taken_port_is_one_clear_error(fake: FakeBaton) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = fake.run("up", "--port", str(port))
    assert result.returncode == 2
    assert result.stderr == (
        f"baton: error: cannot use 127.0.0.1:{port}: Address already in use; "
        "--port 0 picks a free one\n"
    )


def test_log_folder_has_a_file_per_process(fake: FakeBaton, tmp_path: Path) -> None:
    failures = json.dumps({"prefill-0": [1, "it broke"]})
    with fake.up("--log-dir", str(tmp_path / "logs"), FAKE_FAILURES=failures) as up:
        assert up.wait() == 1
    assert "it broke" in (tmp_path / "logs" / "prefill-0.log").read_text()


def signal_pid(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        return bool(workers(url))
    except OSError:
        return False


def test_a_full_disk_under_the_logs_stops_nothing_and_is_used_again(fake: FakeBaton) -> None:
    """More lines than a pipe holds: a child whose pipe is not drained would stand still."""
    logs = fake.folder / "logs"
    logs.mkdir()
    full = [logs / f"{name}.log" for name in ("gateway", "prefill-0", "decode-0")]
    for path in full:
        path.symlink_to("/dev/full")
    with fake.up("--topology", "pd", "--log-dir", str(logs), FAKE_LINES="5000") as up:
        url = up.wait_ready()
        victim = pid_of(url, "decode-0")
        os.kill(victim, signal.SIGKILL)
        until(lambda: pid_of(url, "decode-0") not in (0, victim))
        for path in full:
            path.unlink()
        os.kill(pid_of(url, "prefill-0"), signal.SIGUSR1)
        until(lambda: "line 4999 " in read(logs / "prefill-0.log"))
        assert "5000 lines could not be written\n" in read(logs / "prefill-0.log")
        up.signal(signal.SIGTERM)
        assert up.wait() == 0


def test_a_terminal_that_takes_nothing_stops_nothing(fake: FakeBaton) -> None:
    """Ctrl-S, or `| less`: nobody reads what `up` writes."""
    with fake.up("--topology", "pd", FAKE_LINES="5000") as up:
        url = up.wait_ready()
        victim = pid_of(url, "decode-0")
        os.kill(victim, signal.SIGKILL)
        until(lambda: pid_of(url, "decode-0") not in (0, victim))
        up.signal(signal.SIGTERM)
        assert up.wait() == 0


def test_a_redis_that_does_not_start_again_at_once_is_started_later(fake: FakeBaton) -> None:
    folder = fake.folder / "path"
    folder.mkdir()
    server, moved = folder / "redis-server", folder / "moved"
    server.symlink_to(find_server())
    with fake.up(PATH=f"{folder}:{os.environ['PATH']}") as up:
        up.wait_ready()
        before = redis_pids(up)
        server.rename(moved)
        server.write_text("#!/bin/sh\nexit 1\n")
        server.chmod(0o755)
        os.kill(before[0], signal.SIGKILL)
        for _ in range(2):
            up.wait_line("redis ended; starting it again")
        moved.replace(server)
        until(lambda: redis_pids(up) not in ([], before))


def redis_pids(up: UpProcess) -> list[int]:
    return [pid for pid in up.descendants() if "unixsocket:" in " ".join(command_line(pid))]


def pid_of(url: str, worker_id: str) -> int:
    """0 while it is not there."""
    return next((int(one["pid"]) for one in workers(url) if one["id"] == worker_id), 0)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
