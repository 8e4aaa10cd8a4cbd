"""Cores of their own for the client, the gateway and each worker, where there are enough."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CoreSets:
    """Which cores belong to which process of a cell."""

    client: Sequence[int]
    gateway: Sequence[int]
    workers: Sequence[Sequence[int]]

    @property
    def text(self) -> str:
        return (
            f"client on core {self.client[0]}, gateway on {self.gateway[0]}, workers on "
            f"{len(self.workers[0])} each"
        )


def core_sets(cores: Collection[int], num_workers: int, threads: int | None) -> CoreSets | None:
    """As many for each worker as it has threads, or else an equal share. None: too few cores."""
    client, gateway, *rest = *sorted(cores), -1, -1
    rest = rest[:-2]
    size = threads or len(rest) // num_workers
    if not size or len(rest) < size * num_workers:
        return None
    starts = range(0, size * num_workers, size)
    return CoreSets([client], [gateway], [rest[at : at + size] for at in starts])


def pin(pid: int, cores: Sequence[int]) -> None:
    """A process with its threads, and the processes that it started."""
    for process in _family(pid):
        for thread in _threads(process):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)


@contextlib.contextmanager
def staying_on(cores: Sequence[int] | None) -> Iterator[None]:
    """This process meanwhile; what it starts later is free again."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for thread in _threads(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
            for child in map(int, children):
                yield from _family(child)


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    return []
