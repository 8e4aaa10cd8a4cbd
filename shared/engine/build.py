"""Puts an engine together from settings: checkpoint, device, ranks, scheduler, and the loop."""

import logging
from typing import Literal, cast

from shared.engine.engine import Engine
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.pool_access import PoolAccess
from shared.engine.loading.rank import build_rank
from shared.engine.parallel.ranks import SingleRank
from shared.engine.rank_processes.lead import lead
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.grammars import Grammars
from shared.engine.scheduling.scheduler import Scheduler
from shared.errors import GrammarError
from shared.grammar.matcher import GrammarVocabulary, grammars_available
from shared.kv.block_hash import STRIDE
from shared.model.checkpoint import Checkpoint
from shared.model.files import TOKENIZER
from shared.settings.groups import ComputeSettings, EngineSettings, KVPressure, KVSettings
from shared.settings.profiles import PROFILES

logger = logging.getLogger(__name__)


def build_engine(
    compute: ComputeSettings,
    kv: KVSettings,
    engine: EngineSettings,
    role: Literal["prefill", "decode"],
    checkpoint: Checkpoint,
    weights: type[WeightReader] = WeightReader,
    access: PoolAccess | None = None,
) -> Engine:
    """An engine ready to step. SettingsError, ModelError or MissingError say why not. `access`: of
    other processes to its pools; default: none."""
    access = access or PoolAccess()
    if compute.tp == 1:
        ranks = SingleRank()
        parts = build_rank(compute, kv, engine, checkpoint, ranks, weights, access.kind)
    else:
        parts = lead(compute, kv, engine, checkpoint, weights, access)
    kv_pool = parts.pool
    memory = kv_pool.memory
    pool = BlockPool(
        memory.num_blocks,
        kv.block_size,
        memory.generations,
        prefix_cache=engine.prefix_cache,
        told_every=STRIDE,
    )
    scheduler = Scheduler(
        pool,
        max_num_batched_tokens=parts.step_size.num_tokens,
        max_num_seqs=parts.step_size.num_seqs,
        max_model_len=parts.max_model_len,
        on_kv_pressure=cast(KVPressure, kv.on_pressure),
    )
    logger.info(
        "profile %s: steps of at most %d tokens and %d sequences; %s",
        engine.profile,
        scheduler.max_num_batched_tokens,
        scheduler.max_num_seqs,
        PROFILES[engine.profile].why,
    )
    grammars = load_grammars(checkpoint)
    built = Engine(parts.runner, scheduler, parts.sampler, kv_pool, role, grammars)
    built.step_clock.figures.yardstick = parts.yardstick
    built.gauges.memory = parts.memory
    built.gauges.num_ranks = compute.tp
    return built


def load_grammars(checkpoint: Checkpoint) -> Grammars:
    """The grammar follower. If it cannot be loaded, only requests that need a grammar fail.

    Loaded before anything is served: it would stop the step loop for as long as it takes.
    """
    if not grammars_available() or not (checkpoint.path / TOKENIZER).is_file():
        return Grammars(None)
    try:
        vocabulary = GrammarVocabulary.load(
            checkpoint.path, checkpoint.config.vocab_size, checkpoint.eos_token_ids
        )
    except GrammarError as error:
        logger.warning("no grammars: %s", error)
        return Grammars(None)
    return Grammars(vocabulary)
