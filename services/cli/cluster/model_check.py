"""Whether the workers of a plan could serve their model, before any is started."""

from collections.abc import Iterable
from dataclasses import replace

from services.cli.cluster.plan import Plan
from shared.engine.layers.shard import Shard
from shared.engine.loading.host_memory import free_memory
from shared.engine.loading.host_room import check_host_room, need_of
from shared.engine.loading.pool_size import check_enough_blocks
from shared.errors import ModelError
from shared.kv.share import MAX_RANKS
from shared.model.checkpoint import Checkpoint, load_checkpoint, max_model_len


def check_model(plan: Plan) -> None:
    """ModelError, MissingError or SettingsError for a model that no process could serve. A hub id
    is fetched here, once for all of them."""
    settings = plan.settings
    model, compute = settings.model, settings.compute
    checkpoint = load_checkpoint(model.name, random_weights=model.random_weights)
    max_model_len(checkpoint.config, compute.max_model_len)
    _check_splits(checkpoint, plan.tps)
    check_enough_blocks(settings.kv)
    if plan.on_cpu:
        check_host_memory(plan, checkpoint, free_memory()[1])


def check_host_memory(plan: Plan, checkpoint: Checkpoint, free_bytes: int) -> None:
    """SettingsError if all workers together take more than this machine has free."""
    kv, compute = plan.settings.kv, plan.settings.compute
    ranks = [
        need
        for tp in plan.tps
        for need in [need_of(checkpoint, replace(compute, tp=tp), kv.block_size, "cpu")] * tp
    ]
    check_host_room(ranks, kv, free_bytes, len(plan.tps))


def _check_splits(checkpoint: Checkpoint, tps: Iterable[int]) -> None:
    """`tps`: ranks of the workers."""
    for tp in tps:
        try:
            Shard(checkpoint.config, 0, tp)
        except ModelError as error:
            sizes = (size for size in range(1, MAX_RANKS + 1) if _splits(checkpoint, size))
            fitting = ", ".join(map(str, sizes))
            raise ModelError(f"tp {tp}: {error}; {checkpoint.name} takes tp {fitting}") from None


def _splits(checkpoint: Checkpoint, size: int) -> bool:
    try:
        Shard(checkpoint.config, 0, size)
    except ModelError:
        return False
    return True
