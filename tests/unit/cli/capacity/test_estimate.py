"""What fits, by arithmetic: figures that are known, and what must hold whatever the model is."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
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
from shared.model.checkpoint import random_checkpoint
from shared.model.shapes import SHAPES
from tests.rules.sources import ROOT
from tests.support.settings import settings_with

KIB = 2**10
VAST = Device("a vast GPU", 10**13)


def gpt2(layers: int, hidden: int, positions: int) -> dict[str, Any]:
    shape = {"n_layer": layers, "n_embd": hidden, "n_positions": positions}
    return {"architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_head": 16, **shape}


def llama2(layers: int, hidden: int, wide: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32000,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 32768,
        "torch_dtype": "float16",
    }


GPT2 = {**gpt2(12, 768, 1024), "n_head": 12}
GPT2_MEDIUM = gpt2(24, 1024, 2048)
LLAMA_7B = llama2(32, 4096, 11008, 32, 32)
LLAMA_13B = llama2(40, 5120, 13824, 40, 40)
LLAMA_70B = llama2(80, 8192, 28672, 64, 8)


def question(raw: Mapping[str, Any], device: Device = VAST, **settings: Any) -> Question:
    chosen = settings_with(**{"dtype": "float16", **settings})
    prompt = min(4096, raw.get("n_positions", 4096))
    checkpoint = random_checkpoint(Path("none"), "m", raw)
    return Question(checkpoint, device, chosen.compute, chosen.kv, chosen.engine, prompt)


def kv_bytes(raw: Mapping[str, Any], tokens: int) -> int:
    rows = estimate(replace(question(raw), prompt=tokens)).rows
    return next(row.kv_bytes for row in rows if row.tokens == tokens)


def in_pool(raw: Mapping[str, Any], num_bytes: int, tokens: int) -> int:
    """Sequences of a length that a pool of a size holds."""
    asked = replace(question(raw), prompt=tokens)
    blocks = num_bytes // estimate(asked).layout.block_bytes
    rows = estimate(replace(asked, kv=replace(asked.kv, blocks=blocks))).rows
    return next(row.sequences for row in rows if row.tokens == tokens)


def test_kv_of_known_models() -> None:
    assert kv_bytes(GPT2, 1024) == 36 * MIB
    assert [batch * kv_bytes(LLAMA_7B, 4096) // GIB for batch in (1, 8, 32)] == [2, 16, 64]
    sizes = {512: 256, 1024: 512, 2048: 1024, 4096: 2048}
    assert {tokens: kv_bytes(LLAMA_7B, tokens) // MIB for tokens in sizes} == sizes
    batches = ((GPT2_MEDIUM, 2048, 16), (LLAMA_7B, 4096, 8), (LLAMA_13B, 4096, 4))
    assert [n * kv_bytes(raw, tokens) / GIB for raw, tokens, n in batches] == [3, 16, 12.5]


def test_kv_counts_every_layer_and_shared_heads_once() -> None:
    # Printed as 4 KB, 16 MB and 128 MB: those leave out the 80 layers, and are of one layer.
    capacity = estimate(question(LLAMA_70B))
    assert (capacity.layer_token_bytes, capacity.token_bytes) == (4 * KIB, 320 * KIB)
    assert kv_bytes(LLAMA_70B, 4096) == 1.25 * GIB
    assert kv_bytes(LLAMA_70B, 32768) == 10 * GIB


def test_requests_in_half_of_40_gib() -> None:
    assert in_pool(GPT2_MEDIUM, 20 * GIB, 2048) == 106
    assert in_pool(LLAMA_7B, 20 * GIB, 4096) == 10
    assert in_pool(LLAMA_13B, 20 * GIB, 4096) == 6
    # Printed with 20 GB for weights: those of 13B in float16 alone are 26 GB.
    assert estimate(question(LLAMA_13B)).weights_bytes == pytest.approx(26e9, rel=0.01)


def test_blocks_hold_13_times_what_whole_contexts_do() -> None:
    # Printed as 426, which divides decimal GB by binary MB and forgets that blocks are whole.
    whole, paged = in_pool(LLAMA_7B, 64 * GIB, 4096), in_pool(LLAMA_7B, 64 * GIB, 300)
    assert (whole, paged) == (32, 431)
    assert paged >= 13 * whole


@pytest.mark.parametrize(("dtype", "gigabytes"), [("float32", 26.95), ("float16", 13.48)])
def test_weights_of_7b(dtype: str, gigabytes: float) -> None:
    # Printed as 28 and 14 GB, of 7.0 billion parameters; there are 6.74.
    weights = estimate(question(LLAMA_7B, dtype=dtype)).weights_bytes
    assert weights == pytest.approx(gigabytes * 1e9, rel=0.001)


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
