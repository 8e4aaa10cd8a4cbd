"""Ranks that are threads of one process: what they say to each other is arithmetic on a shelf."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import torch

from shared.engine.layers.shard import Shard
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.pool_access import PoolAccess
from shared.engine.loading.rank import build_rank
from shared.engine.loading.runner_parts import RunnerParts
from shared.engine.rank_processes.follower import follow
from shared.engine.rank_processes.leading_runner import LeadingRunner
from shared.engine.rank_processes.plan_channel import send_meeting, send_plan
from shared.engine.scheduling.batch import HostBatch
from shared.model.checkpoint import Checkpoint
from shared.settings.groups import ComputeSettings, EngineSettings, KVSettings

TIMEOUT_S = 60.0


class Shelf:
    """Where the ranks of one group leave a tensor each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._places: list[torch.Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """BrokenBarrierError, a RuntimeError, where a rank has left."""
        self._places[rank] = tensor.clone()
        self._barrier.wait(TIMEOUT_S)
        everything = list(self._places)
        self._barrier.wait(TIMEOUT_S)
        return everything

    @contextlib.contextmanager
    def broken_by_errors(self) -> Iterator[None]:
        """A rank that fails lets nobody wait for it."""
        try:
            yield
        except EOFError:
            raise
        except BaseException:
            self._barrier.abort()
            raise


class ThreadRanks:
    """See shared.engine.parallel.ranks.Ranks."""

    def __init__(self, rank: int, shelf: Shelf) -> None:
        self.rank = rank
        self.size = shelf.size
        self.shelf = shelf

    def reduce(self, partial: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        total, *others = self.shelf.exchange(self.rank, partial)
        total = total.clone()
        for other in others:
            total += other
        return total + residual

    def gather(self, logits: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        parts = torch.cat(self.shelf.exchange(self.rank, logits), dim=1)
        return output if self.rank else output.copy_(parts[:, : output.shape[1]])

    def broadcast(self, ids: torch.Tensor) -> torch.Tensor:
        return self.shelf.exchange(self.rank, ids)[0].clone()

    def least(self, number: int) -> int:
        numbers = self.shelf.exchange(self.rank, torch.tensor(number))
        return min(int(other) for other in numbers)

    def close(self) -> None:
        return None


Groups = tuple[ComputeSettings, KVSettings, EngineSettings]


class ThreadFollowers:
    """What shared.engine.rank_processes.followers.Followers does, with threads."""

    broken = False

    def __init__(
        self,
        settings: Groups,
        checkpoint: Checkpoint,
        shelf: Shelf,
        weights: type[WeightReader],
    ) -> None:
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        for rank in range(1, shelf.size):
            ours, theirs = socket.socketpair()
            arguments = (ThreadRanks(rank, shelf), theirs, settings, checkpoint, weights)
            thread = threading.Thread(target=_follow, args=arguments, daemon=True)
            thread.start()
            self._sockets.append(ours)
            self._threads.append(thread)

    def send(self, batch: HostBatch) -> None:
        send_plan(self._sockets, batch)

    def call(self) -> None:
        send_meeting(self._sockets)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        yield

    def dismiss(self) -> None:
        for sock in self._sockets:
            sock.close()

    def close(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT_S)


def _follow(
    ranks: ThreadRanks,
    sock: socket.socket,
    settings: Groups,
    checkpoint: Checkpoint,
    weights: type[WeightReader],
) -> None:
    cpu = torch.device("cpu")
    with sock, contextlib.suppress(EOFError), ranks.shelf.broken_by_errors():
        parts = build_rank(*settings, checkpoint, ranks, weights)
        follow(parts.runner, ranks, sock, cpu)


def lead_threads(
    compute: ComputeSettings,
    kv: KVSettings,
    engine: EngineSettings,
    checkpoint: Checkpoint,
    weights: type[WeightReader],
    access: PoolAccess,
) -> RunnerParts:
    """Instead of shared.engine.rank_processes.lead.lead, for engines whose pools nobody else
    reaches."""
    assert not access.mover_fds
    Shard(checkpoint.config, 0, compute.tp)
    shelf = Shelf(compute.tp)
    followers = ThreadFollowers((compute, kv, engine), checkpoint, shelf, weights)
    ranks = ThreadRanks(0, shelf)
    parts = build_rank(compute, kv, engine, checkpoint, ranks, weights)
    runner = LeadingRunner(parts.runner, ranks, followers)  # type: ignore[arg-type]
    return replace(parts, runner=runner)
