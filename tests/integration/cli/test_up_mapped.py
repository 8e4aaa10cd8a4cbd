"""A cell whose workers can map each other: its folder goes with it; another transport by name."""

import socket
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import Cluster, process_family, running

BODY: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True}


def transfer_folder(cluster: Cluster) -> Path:
    command = psutil.Process(cluster.workers("prefill")[0]["pid"]).cmdline()
    return Path(command[command.index("--transfer-dir") + 1])


def transport_of_an_answer(cluster: Cluster) -> str:
    stream = cluster.answer(BODY)
    assert stream.complete, stream
    cluster.wait(lambda: cluster.receipt(stream.rid)["bytes"])
    return str(cluster.receipt(stream.rid)["transport"])


def test_a_cell_s_folder_goes_with_it(tmp_path: Path) -> None:
    with running(tmp_path, "--kv-blocks", "64") as cluster:
        folder = transfer_folder(cluster)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert any(path.is_socket() for path in folder.iterdir())
        assert "KV auto" in cluster.log_tail()
        assert transport_of_an_answer(cluster) == "mapped"
    assert not folder.exists()


def test_what_a_killed_cell_left_is_in_nobody_s_way(tmp_path: Path) -> None:
    """The sockets in a folder that the next cell is told to use as well."""
    folder = Path(tempfile.mkdtemp(prefix="kv"))  # of a short name, as sockets want it
    with running(tmp_path, "--kv-blocks", "64", BATON_TRANSFER_DIR=str(folder)) as cluster:
        assert transfer_folder(cluster) == folder
        family = process_family(cluster.supervisor.pid)
        cluster.supervisor.kill()
        cluster.supervisor.wait()
        _, alive = psutil.wait_procs(family[1:], timeout=10)
        assert not alive
    left = [path for path in folder.iterdir() if path.is_socket()]
    assert left
    with running(tmp_path, "--kv-blocks", "64", BATON_TRANSFER_DIR=str(folder)) as cluster:
        assert transfer_folder(cluster) == folder
        assert transport_of_an_answer(cluster) == "mapped"
    for path in left:
        with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError):
            sock.connect(str(path))
        path.unlink(missing_ok=True)
    folder.rmdir()


@pytest.mark.parametrize("transport", ["tcp", "nixl"])
def test_another_transport_is_passed_on(tmp_path: Path, transport: str) -> None:
    with running(tmp_path, "--kv-blocks", "64", "--transport", transport) as cluster:
        assert f"KV {transport}" in cluster.log_tail()
        assert transport_of_an_answer(cluster) == transport
