"""A process for one rank but the first: it runs what rank 0 plans. What it warns of goes to the
standard error that it has of rank 0; what is as it should be, rank 0 says for all.

    loop:  receive a plan  ->  the sampled ids it needs, from rank 0  ->  run

Started by shared.engine.rank_processes.followers; settings come through the environment. It ends
with rank 0.
"""

import contextlib
import json
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from shared.engine.layers.random_weights import RandomWeights
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.devices import resolve_device
from shared.engine.loading.memory_exchange import take_memory
from shared.engine.loading.pool_access import pool_kind, start_mover
from shared.engine.loading.rank import build_rank
from shared.engine.parallel.join import join
from shared.engine.parallel.ranks import Ranks
from shared.engine.rank_processes.followers import NO_MOVER
from shared.engine.rank_processes.plan_channel import receive_plan
from shared.engine.running.model_runner import Runner
from shared.errors import BatonError
from shared.model.checkpoint import Checkpoint, load_checkpoint, random_checkpoint
from shared.model.shapes import SHAPES
from shared.process import die_with_parent, freeze_heap
from shared.settings.load import load_settings


def follow(runner: Runner, ranks: Ranks, sock: socket.socket, device: torch.device) -> None:
    """Until rank 0 closes the channel (EOFError)."""
    num_sampled = 0
    while True:
        batch = receive_plan(sock)
        if batch is None:
            ranks.least(0)
            continue
        previous = None
        if batch.awaits_tokens:
            ids = torch.zeros(num_sampled, dtype=torch.int64, device=device)
            previous = ranks.broadcast(ids)
        runner.run(batch, previous)
        num_sampled = batch.shape.num_logits_rows


def _without_weights(path: str, name: str) -> Checkpoint:
    """Of a known shape, or of a directory's config.json."""
    raw = SHAPES.get(path)
    if raw is None:
        raw = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    return random_checkpoint(Path(path), name, raw)


def main(arguments: Sequence[str]) -> int:
    """`follower FD MOVER_FD RANK SIZE PARENT_PID MEETING POOL_KIND MODEL NAME stored|random`:
    exit status."""
    fd, mover_fd, rank, size, parent_pid = map(int, arguments[:5])
    meeting, kind, model, name, weights = arguments[5:]
    logging.basicConfig(format=f"%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s")
    die_with_parent(parent_pid)
    sock = socket.socket(fileno=fd)
    try:
        settings = load_settings()
        device = resolve_device(settings.compute.device, rank)
        drawn = weights == "random"
        checkpoint = _without_weights(model, name) if drawn else load_checkpoint(model)
        ranks = join(rank, size, device, Path(meeting))
        reader = RandomWeights if drawn else WeightReader
        parts = build_rank(*settings.of_engine, checkpoint, ranks, reader, pool_kind(kind))
        if mover_fd != NO_MOVER:
            take_memory(sock, parts.pool)
            start_mover(socket.socket(fileno=mover_fd), parts.pool)
        freeze_heap()
        with contextlib.suppress(EOFError):
            follow(parts.runner, ranks, sock, device)
        del parts  # a group waits for the graphs that its calls were captured in
        ranks.close()
    except BatonError as error:
        say(sock, str(error))
        return error.exit_code
    except (OSError, RuntimeError) as error:
        logging.getLogger(__name__).warning("%s", error)
        say(sock, str(error).partition("\n")[0])
        return 1
    return 0


def say(sock: socket.socket, text: str) -> None:
    """The last words, if rank 0 is still there to hear them."""
    with contextlib.suppress(OSError):
        sock.sendall(text.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
