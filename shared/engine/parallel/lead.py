"""Rank 0's way to a runner: start the other ranks, become one of them, and lead them."""

from dataclasses import replace

import torch

from shared.checkpoint import Checkpoint
from shared.engine.build import RunnerParts, build_rank, resolve_device
from shared.engine.parallel.followers import Followers
from shared.engine.parallel.join import join
from shared.engine.parallel.runner import LeadingRunner
from shared.engine.parallel.shard import Shard
from shared.engine.weights import WeightReader
from shared.settings import Settings


def lead(
    settings: Settings,
    checkpoint: Checkpoint,
    device: torch.device,
    weights: type[WeightReader] = WeightReader,
) -> RunnerParts:
    """The parts of rank 0 of settings.tp, its runner that of all.

    ModelError if the model cannot be split so, MissingError if there are too few GPUs,
    RankLostError if another rank ends meanwhile.
    """
    size = settings.tp
    Shard(checkpoint.config, 0, size)
    resolve_device(settings.device, size - 1)
    stored = "stored" if weights is WeightReader else "random"
    followers = Followers(settings, [str(checkpoint.path), checkpoint.name, stored])
    try:
        with followers.explained():
            ranks = join(0, size, device, followers.meeting)
            parts = build_rank(settings, checkpoint, device, ranks, weights)
    except BaseException:
        followers.close()
        raise
    return replace(parts, runner=LeadingRunner(parts.runner, ranks, followers))
