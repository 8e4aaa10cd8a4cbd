"""The folder where mapped workers meet: whoever starts there removes what killed workers left."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.transfer.ways.folder import new_socket_name, remove_dead_sockets
from tests.support.pairs.owner_processes import OwnerProcesses, owner_processes
from tests.support.pairs.transfer_pair import LAYOUT, Pair

pytestmark = pytest.mark.anyio


@pytest.fixture
def owners() -> Iterator[OwnerProcesses]:
    with owner_processes() as owners:
        yield owners


async def test_a_worker_removes_the_socket_of_one_that_was_killed(
    owners: OwnerProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    """And no file of a worker that lives, which does not notice; nor what is no socket of ours."""
    async with Pair("mapped") as pair:
        place = Path(pair.p.transport.address.socket).parent
        killed, stopped = (owners.make("mapped", place, LAYOUT.block_bytes, 2) for _ in range(2))
        os.kill(killed.pid, signal.SIGKILL)
        os.kill(stopped.pid, signal.SIGSTOP)
        await gone(killed.pid)
        (place / f"{'0' * 16}.sock").touch()
        with socket.socket(socket.AF_UNIX) as foreign:
            foreign.bind(str(place / "foreign.sock"))
        expected = set(place.iterdir()) - {Path(killed.address.socket)}
        other = pair.side("p.2")
        await other.transport.start()
        assert set(place.iterdir()) == expected | {Path(other.transport.address.socket)}
        await other.close()
        assert set(place.iterdir()) == expected
    assert caplog.records == []


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.005)


def test_a_socket_that_does_not_listen_yet_is_not_dead(tmp_path: Path) -> None:
    path = tmp_path / new_socket_name()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        remove_dead_sockets(tmp_path)
        assert list(tmp_path.iterdir()) == [path]
    remove_dead_sockets(tmp_path)
    assert list(tmp_path.iterdir()) == []
