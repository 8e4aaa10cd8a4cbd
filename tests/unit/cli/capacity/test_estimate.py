"""What fits, by arithmetic: what must hold whatever the model is. Figures that are known are on the
page of shared/articles, whose test asks the same functions."""

from dataclasses import replace
from typing import Any

import pytest

from services.cli.byte_size import GIB, MIB
from services.cli.capacity.advice import advise
from services.cli.capacity.devices import GPUS_MIB, Device, named_gpu
from services.cli.capacity.estimate import (
    Capacity,
    Question,
    estimate,
    hand_over_s,
    usd_per_million_tokens,
)
from shared.engine.loading.pool_size import MemoryProfile, blocks_on_gpu
from shared.errors import ModelError, SettingsError
from shared.model.shapes import SHAPES
from tests.rules.sources import ROOT
from tests.support.cases.known_models import LLAMA_7B, LLAMA_13B, LLAMA_70B, question


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_pool_of_a_gpu_is_what_a_worker_would_count(tp: int) -> None:
    asked = question(SHAPES["llama-3.1-8b"], named_gpu("H100"), tp=tp, dtype="auto")
    capacity = estimate(asked)
    profile = MemoryProfile(
        asked.device.total_bytes,
        asked.kv.gpu_memory_utilization,
        capacity.others_bytes,
        capacity.weights_bytes,
        capacity.step_bytes,
    )
    assert capacity.num_blocks == blocks_on_gpu(profile, capacity.layout.block_bytes)
    assert 0 <= capacity.room_bytes - capacity.pool_bytes < capacity.layout.block_bytes
    assert capacity.fits


@pytest.mark.parametrize("given", [{}, {"max_num_seqs": 32}])
def test_with_tune_a_worker_may_find_the_largest_steps(given: dict[str, int]) -> None:
    asked = question(SHAPES["llama-3.1-8b"], named_gpu("H100"), dtype="auto")
    engine = replace(asked.engine, **given)  # type: ignore[arg-type]
    tuned = estimate(replace(asked, engine=replace(engine, tune=True)))
    largest = estimate(replace(asked, engine=replace(engine, profile="high_throughput")))
    assert tuned == largest
    assert tuned.num_blocks < estimate(replace(asked, engine=engine)).num_blocks


def test_hand_overs_take_what_was_measured() -> None:
    """And shared/transfer/README.md says the same."""
    text = (ROOT / "shared/transfer/README.md").read_text(encoding="utf-8")
    rates = {
        ("mapped", 134e6): 7.7,
        ("tcp", 134e6): 2.7,
        ("mapped", 1.07e9): 34,
        ("tcp", 1.07e9): 3.1,
    }
    for (way, num_bytes), rate in rates.items():
        assert num_bytes / hand_over_s(num_bytes, way) == pytest.approx(rate * 1e9)
    assert "| 7.7 GB/s | 2.7 GB/s |" in text
    assert "| 34 GB/s | 3.1 GB/s |" in text
    assert "1.07 GB is verified 0.5 ms after token 1" in text


def test_no_hand_over_is_timed_where_none_was_measured() -> None:
    host = Device("host", 64 * GIB, on_gpu=False)
    assert all(row.hand_over_s for row in estimate(question(LLAMA_7B)).rows)
    assert not any(row.hand_over_s for row in estimate(question(LLAMA_7B, tp=2)).rows)
    assert not any(row.hand_over_s for row in estimate(question(LLAMA_7B, host)).rows)


def test_cost_is_the_price_of_all_gpus_over_their_tokens() -> None:
    asked = replace(question(LLAMA_7B, tp=2), usd_per_gpu_hour=2.5, tokens_per_s=1000.0)
    assert usd_per_million_tokens(asked) == pytest.approx(2 * 2.5 / 3.6)
    assert usd_per_million_tokens(question(LLAMA_7B)) == 0


def test_a_model_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be split evenly"):
        estimate(question({**LLAMA_7B, "num_attention_heads": 2, "num_key_value_heads": 2}, tp=8))


def test_a_gpu_has_several_spellings_and_an_unknown_one_is_refused() -> None:
    for name in ("a100-80", "A100 80GB", "rtx4090", *GPUS_MIB):
        assert named_gpu(name).total_bytes in {mib * MIB for mib in GPUS_MIB.values()}
    with pytest.raises(SettingsError, match=r"RTX-4090.*--gpu-memory"):
        named_gpu("A100")


def followed(asked: Question, flags: tuple[str, ...]) -> Capacity:
    """The advice, fed back."""
    change: dict[str, Any] = dict(flag.split() for flag in flags)
    compute = replace(
        asked.compute,
        dtype=change.get("--dtype", asked.compute.dtype),
        tp=int(change.get("--tp", asked.compute.tp)),
        max_model_len=int(change.get("--context", asked.compute.max_model_len)),
    )
    memory_mib = int(change.get("--kv-memory-mib", asked.kv.memory_mib))
    return estimate(replace(asked, compute=compute, kv=replace(asked.kv, memory_mib=memory_mib)))


REFUSED = [
    question(raw, device, max_model_len=context, dtype=dtype, tp=tp)
    for raw in (LLAMA_7B, LLAMA_13B, LLAMA_70B, SHAPES["llama-3.1-8b"])
    for device in (named_gpu("L4"), named_gpu("A100-40"), Device("host", 60 * GIB, 0, on_gpu=False))
    for context, dtype in ((0, "float32"), (32768, "float32"), (32768, "bfloat16"))
    for tp in (1, 2)
    if device.on_gpu or tp == 1
]


def test_advice_holds_when_it_is_followed() -> None:
    refused = [asked for asked in REFUSED if not estimate(asked).fits]
    advised = [(asked, flags) for asked in refused for flags in advise(asked)]
    assert len(refused) >= 20
    assert [(asked, flags) for asked, flags in advised if not followed(asked, flags).fits] == []
    given = {flag.split()[0] for _, flags in advised for flag in flags}
    assert given == {"--tp", "--dtype", "--context", "--kv-memory-mib"}


def test_the_context_that_is_advised_is_the_longest() -> None:
    asked = question(LLAMA_7B, named_gpu("L4"), max_model_len=32768)
    (flag,) = next(flags for flags in advise(asked) if flags[0].startswith("--context"))
    longest = int(flag.split()[1])
    longer = replace(asked, compute=replace(asked.compute, max_model_len=longest + 64))
    assert not estimate(longer).fits


def test_nothing_is_advised_where_nothing_helps() -> None:
    assert advise(question(LLAMA_70B, Device("a small GPU", 4 * GIB))) == ()
