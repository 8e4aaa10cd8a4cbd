"""The tuner of a rank: what is known of its device, and where it keeps what it finds."""

import logging
import os

import torch

from shared.engine.loading.devices import device_name
from shared.engine.loading.tuning.tuned_file import Key, TunedFile, tuning_folder
from shared.engine.loading.tuning.tuner import Tuner
from shared.engine.parallel.ranks import Ranks
from shared.kv.layout import KVLayout
from shared.release import release
from shared.settings.groups import EngineSettings

logger = logging.getLogger(__name__)


def step_tuner(
    engine: EngineSettings, layout: KVLayout, length: int, device: torch.device, ranks: Ranks
) -> Tuner:
    """`length`: tokens of the longest sequence."""
    file = None
    if engine.tune and ranks.rank == 0:
        file = _tuned_file(engine, layout, length, device, ranks.size)
    return Tuner(engine, device.type, layout.block_size, length, ranks, file)


def _tuned_file(
    engine: EngineSettings, layout: KVLayout, length: int, device: torch.device, num_ranks: int
) -> TunedFile | None:
    key: Key = {
        "baton": release(),
        "torch": torch.__version__,
        "device": device_name(device),
        "model": layout.fingerprint(),  # with the type of its KV and the size of a block
        "ranks": num_ranks,
        "longest": length,
        "threads": engine.threads,
        "eager": engine.eager,
        "profile": engine.profile,
        "slo_gap_ms": engine.slo_gap_ms,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
    }
    try:
        return TunedFile(tuning_folder(os.environ), key)
    except OSError as error:
        logger.warning("tune: what is found cannot be kept: %s", error)
        return None
