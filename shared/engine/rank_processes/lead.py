"""Rank 0's way to a runner: start the other ranks, become one of them, and lead them."""

from dataclasses import replace

from shared.engine.layers.shard import Shard
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.devices import resolve_device
from shared.engine.loading.pool_access import PoolAccess
from shared.engine.loading.rank import build_rank
from shared.engine.loading.runner_parts import RunnerParts
from shared.engine.parallel.join import join
from shared.engine.rank_processes.followers import Followers
from shared.engine.rank_processes.leading_runner import LeadingRunner
from shared.model.checkpoint import Checkpoint
from shared.settings.groups import ComputeSettings, EngineSettings, KVSettings
from shared.settings.load import to_environment


def lead(
    compute: ComputeSettings,
    kv: KVSettings,
    engine: EngineSettings,
    checkpoint: Checkpoint,
    weights: type[WeightReader],
    access: PoolAccess,
) -> RunnerParts:
    """The parts of rank 0 of compute.tp, its runner that of all. Every rank has a mover where
    `access` names a socket for it; all of them use the host-visible memory of rank 0.

    ModelError if the model cannot be split so, MissingError if there are too few GPUs,
    RankLostError if another rank ends meanwhile.
    """
    size = compute.tp
    Shard(checkpoint.config, 0, size)
    resolve_device(compute.device, size - 1)
    stored = "stored" if weights is WeightReader else "random"
    environment = to_environment(compute, kv, engine)
    device = resolve_device(compute.device)
    model = [str(checkpoint.path), checkpoint.name, stored]
    followers = Followers(size, environment, model, access)
    try:
        with followers.explained():
            ranks = join(0, size, device, followers.meeting)
            parts = build_rank(compute, kv, engine, checkpoint, ranks, weights, access.kind)
            if access.mover_fds:
                parts.pool.others = followers.give_memory(parts.pool.memory.fd)
    except BaseException:
        followers.close()
        raise
    return replace(parts, runner=LeadingRunner(parts.runner, ranks, followers))
