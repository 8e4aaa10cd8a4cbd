"""Two hosts on one machine: network namespaces with a link of limited rate between them."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.unshared import can_run

HERE, THERE = "10.213.0.1", "10.213.0.2"
"""addresses of this host and of the other one"""
TRIAL = "ip link add h0 type veth peer name h1 && tc qdisc add dev h0 root tbf {}"
BUCKET = "rate {}mbit burst 64kb latency 400ms"


def may_make_hosts() -> bool:
    """`ip` and `tc` are a package of their own."""
    return can_run("net", TRIAL.format(BUCKET.format(1)))


class OtherHost:
    """Reached at THERE. Its file system is this one's."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def prefix(self) -> tuple[str, ...]:
        """Of a command that runs there."""
        return ("nsenter", "--target", str(self._pid), "--net")

    def run(self, command: str) -> None:
        subprocess.run([*self.prefix, *command.split()], check=True)  # noqa: S603


@contextmanager
def other_host(mbit: int) -> Iterator[OtherHost]:
    """Joined to this one by a link of that rate both ways; it ends with the block. To be called
    with a network of one's own."""
    command = ["unshare", "--net", "setpriv", "--pdeathsig", "KILL", "sleep", "infinity"]
    keeper = subprocess.Popen(command)  # noqa: S603
    try:
        _wait_until_apart(keeper.pid)
        host = OtherHost(keeper.pid)
        _run(f"ip link add h0 type veth peer name h1 netns {keeper.pid}")
        for run, name, address in ((_run, "h0", HERE), (host.run, "h1", THERE)):
            run("ip link set lo up")
            run(f"ip address add {address}/24 dev {name}")
            run(f"ip link set {name} up")
            run(f"tc qdisc add dev {name} root tbf {BUCKET.format(mbit)}")
        yield host
    finally:
        keeper.kill()
        keeper.wait()


def _wait_until_apart(pid: int) -> None:
    ours = Path("/proc/self/ns/net").readlink()
    deadline_s = time.monotonic() + 10
    while Path(f"/proc/{pid}/ns/net").readlink() == ours or not _sleeps(pid):
        assert time.monotonic() < deadline_s, "the other host does not start"
        time.sleep(0.01)


def _sleeps(pid: int) -> bool:
    """It has become the command that keeps the namespace."""
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "sleep"


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)  # noqa: S603
