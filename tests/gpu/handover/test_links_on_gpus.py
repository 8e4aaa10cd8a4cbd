"""A link of NCCL between two GPUs: the bytes that were sent arrive, and an end that is lost costs
the link, not the process.

With NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 the bytes go over sockets, as between two hosts.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.mover.copies import CopyError
from shared.mover.links.nccl import NcclLink
from tests.gpu.handover.link_end import content

NUM_ABORTS = int(os.environ.get("LINK_ABORTS", "3"))
OURS, THEIRS = torch.device("cuda:0"), torch.device("cuda:1")
SOON_S = 3.0
pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


class OtherEnd:
    """Gives, in a process with the other GPU."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "tests.gpu.handover.link_end", str(THEIRS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, *words: object) -> str:
        self.tell(*words)
        return self.hear()

    def link(self) -> NcclLink:
        """Our end of a new one."""
        card = bytes.fromhex(self.ask("link"))
        ours = NcclLink("takes", "127.0.0.1", OURS)
        self.tell("meet", ours.card().hex())
        ours.meet(card)
        assert self.hear() == "done"
        return ours

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other() -> Iterator[OtherEnd]:
    other = OtherEnd()
    yield other
    other.close()


def take(other: OtherEnd, link: NcclLink, num_bytes: int, seed: int) -> float:
    """Seconds that it took."""
    room = torch.zeros(num_bytes, dtype=torch.uint8, device=OURS)
    torch.cuda.synchronize()
    other.tell("send", num_bytes, seed)
    start_s = time.perf_counter()
    link.receive(room)
    took_s = time.perf_counter() - start_s
    assert other.hear() == "done"
    assert torch.equal(room, content(num_bytes, seed, OURS))
    return took_s


def test_what_is_sent_arrives(other: OtherEnd) -> None:
    link = other.link()
    for seed, num_bytes in enumerate([1, 1000, 2**20, 2**25, 3, 2**25]):
        took_s = take(other, link, num_bytes, seed)
        sys.stderr.write(f"{num_bytes} bytes: {num_bytes / took_s / 1e9:.2f} GB/s\n")
    link.close()
    assert other.ask("close") == "done"


def test_links_that_are_aborted_amid_a_read_are_made_again(other: OtherEnd) -> None:
    """One after the other; each one moves bytes before it is aborted."""
    for seed in range(NUM_ABORTS):
        link = other.link()
        take(other, link, 2**20, seed)
        threading.Timer(0.05, link.abort).start()
        start_s = time.monotonic()
        with pytest.raises(CopyError, match="does not answer"):
            link.receive(torch.empty(2**20, dtype=torch.uint8, device=OURS))
        link.close()
        assert time.monotonic() - start_s < SOON_S
        assert other.ask("close") == "done"


def test_an_end_that_is_killed_costs_the_link_alone(other: OtherEnd) -> None:
    link = other.link()
    take(other, link, 2**20, 1)
    failed: list[CopyError] = []

    def receive() -> None:
        try:
            link.receive(torch.empty(2**20, dtype=torch.uint8, device=OURS))
        except CopyError as error:
            failed.append(error)

    reading = threading.Thread(target=receive)
    reading.start()
    other.close()
    time.sleep(0.2)
    link.abort()  # as the mover does once the connection has ended
    reading.join(SOON_S)
    assert failed
    link.close()
    survivor = OtherEnd()
    again = survivor.link()
    take(survivor, again, 2**20, 2)
    again.close()
    survivor.close()


def test_what_nobody_answers_ends(other: OtherEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.mover.links.nccl.MOVE_S", 0.5)
    link = other.link()
    with pytest.raises(CopyError, match="does not answer"):
        link.receive(torch.empty(2**20, dtype=torch.uint8, device=OURS))
    link.close()


def num_held() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    own = Path("/proc/self")
    return len(list((own / "task").iterdir())), len(list((own / "fd").iterdir()))


@pytest.mark.parametrize("half", [False, True])
def test_an_end_that_nobody_meets_leaves_nothing(half: bool) -> None:
    """`half`: it waits for the other end when it is given up, of which NCCL loses four
    descriptors."""
    first = NcclLink("gives", "127.0.0.1", OURS)
    first.close()  # what NCCL keeps of the first one it makes stays
    before = num_held()
    links = [NcclLink("gives", "127.0.0.1", OURS) for _ in range(5)]
    assert num_held()[0] >= before[0] + len(links), "what is to end has not begun"
    for link in links:
        if half:
            threading.Timer(0.2, link.abort).start()
            with pytest.raises(CopyError, match="does not answer"):
                link.meet(link.card())
        link.close()
    until_s = time.monotonic() + SOON_S
    allowed = before[0], before[1] + (4 * len(links) if half else 0)
    while any(now > most for now, most in zip(num_held(), allowed, strict=True)):
        assert time.monotonic() < until_s, f"{num_held()}, not {allowed}"
        time.sleep(0.05)
