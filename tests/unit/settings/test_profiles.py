"""Each profile can start whatever else is set, and what is set by hand beats it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.settings.groups import EngineSettings
from shared.settings.profiles import PROFILES

DEVICES = ("cpu", "cuda")


@given(
    profile=st.sampled_from(sorted(PROFILES)),
    device=st.sampled_from(DEVICES),
    block_size=st.integers(1, 256),
)
def test_an_engine_of_any_profile_starts(profile: str, device: str, block_size: int) -> None:
    engine = EngineSettings(profile=profile)
    Scheduler(
        BlockPool(4, block_size, [0] * 4),
        max_num_batched_tokens=engine.tokens_per_step(device),
        max_num_seqs=engine.running_seqs(device, block_size),
        max_model_len=64,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_steps_grow_from_low_latency_to_high_throughput(device: str) -> None:
    engines = [EngineSettings(profile=name) for name in PROFILES]
    tokens = [engine.tokens_per_step(device) for engine in engines]
    sequences = [engine.running_seqs(device, 16) for engine in engines]
    assert tokens == sorted(set(tokens))
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_set_by_hand_beats_the_profile(profile: str) -> None:
    engine = EngineSettings(profile=profile, max_num_batched_tokens=1000, max_num_seqs=7)
    assert (engine.tokens_per_step("cuda"), engine.running_seqs("cuda", 16)) == (1000, 7)
