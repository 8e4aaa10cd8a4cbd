"""The least times reproduce the floors that the goals were set by, and the bytes they count are
those that the models hold."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from services.cli.bench.engine.cells import LARGE, SMALL, DecodeCell
from services.cli.bench.engine.figures import floors as floors_module
from services.cli.bench.engine.figures.floors import Floors, attention_share
from services.cli.bench.engine.workload import RandomPrompts, mixed_workload, repeats
from shared.engine.layers.model import Model
from shared.engine.layers.operations import TorchOperations
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.loading.runner_parts import load_model
from shared.engine.running.ceilings import Ceilings
from shared.model.checkpoint import random_checkpoint
from shared.model.config import parse_config
from shared.model.model_size import ModelSize
from shared.model.shapes import SHAPES
from tests.support.models.tiny_model import TINY, TINY_GPT2

H200 = Ceilings(copy_bytes_per_s=4.28e12, matmul_flops_per_s=701e12)


def floors_of(name: str, ceilings: Ceilings = H200) -> Floors:
    return Floors(ModelSize.of(parse_config(SHAPES[name]), "bfloat16"), ceilings)


def decode_ms(name: str, cells: tuple[object, ...]) -> dict[str, float]:
    floors = floors_of(name)
    return {
        cell.name: floors.decode_step_s([cell.mean_context] * cell.num_sequences) * 1e3
        for cell in cells
        if isinstance(cell, DecodeCell)
    }


def test_decode_floors_of_llama() -> None:
    assert decode_ms("llama-3.1-8b", LARGE) == pytest.approx(
        {
            "tpot-1": 3.54,
            "tpot-32": 4.64,
            "tpot-128": 8.02,
            "tpot-256": 14.52,
            "tpot-64-4k": 11.65,
        },
        abs=0.006,
    )


def test_decode_floors_of_qwen() -> None:
    """Known to two digits."""
    assert decode_ms("qwen3-0.6b", SMALL) == pytest.approx(
        {"tpot-1": 0.31, "tpot-32": 1.2, "tpot-128": 4.2, "tpot-256": 8.3}, rel=0.04
    )


def test_prefill_floors_of_llama() -> None:
    """The known 21.7 / 199 / 1113 ms count elementwise kernels from 8k on, which we leave out."""
    floors = floors_of("llama-3.1-8b")
    assert floors.prefill_s(1024) * 1e3 == pytest.approx(21.7, abs=0.05)
    assert floors.prefill_s(8192) * 1e3 == pytest.approx(199 * 0.96, rel=0.01)
    assert floors.prefill_s(32768) * 1e3 == pytest.approx(1113 * 0.97, rel=0.01)


def test_prefill_floors_at_other_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic that gave 18.5 / 172 / 1012 ms with attention at 650 of 790 TFLOP/s; the
    first of them without the head."""
    monkeypatch.setattr(floors_module, "ATTENTION_SHARES", ((1024, 650 / 790),))
    floors = floors_of("llama-3.1-8b", Ceilings(4.3e12, 790e12))
    times_ms = [floors.prefill_s(length) * 1e3 for length in (1024, 8192, 32768)]
    assert times_ms == pytest.approx([18.5, 172, 1012], rel=0.015)


def test_offline_floors() -> None:
    """35,300 output tokens a second of the mixed lengths; 38,700 tokens of the equal ones with
    elementwise kernels."""
    mixed = mixed_workload(256, 1024, 151936)
    out = mixed.num_output_tokens / floors_of("qwen3-0.6b").workload_s(mixed.lengths)
    assert out == pytest.approx(35_300, rel=0.01)
    total = 512 * 1152 / floors_of("llama-3.1-8b").workload_s([(1024, 128)] * 512)
    assert total == pytest.approx(38_700, rel=0.05)


def test_mixed_lengths_are_the_known_ones() -> None:
    mixed = mixed_workload(256, 1024, 151936)
    assert (mixed.num_prompt_tokens, mixed.num_output_tokens) == (142_827, 133_966)
    assert mixed.temperature == 0.6


@pytest.mark.parametrize("tp_size", [2, 4])
def test_a_rank_has_its_share(tp_size: int) -> None:
    config = parse_config(SHAPES["llama-3.1-8b"])
    whole, part = (ModelSize.of(config, "bfloat16", size) for size in (1, tp_size))
    assert part.layer_params * tp_size == whole.layer_params
    assert part.kv_layer_bytes * tp_size == whole.kv_layer_bytes


def test_kv_heads_are_replicated_when_there_are_too_few() -> None:
    config = parse_config(TINY)
    assert ModelSize.of(config, "float32", 6).kv_layer_bytes == 2 * 16 * 4
    assert ModelSize.of(config, "float32", 1).kv_layer_bytes == 2 * 2 * 16 * 4


def test_a_window_bounds_what_is_read_and_multiplied() -> None:
    mistral = {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 8}
    size = ModelSize.of(parse_config(mistral), "float32")
    assert size.kv_read_bytes(100) == size.kv_read_bytes(8)
    keys = sum(min(position + 1, 8) for position in range(20))
    assert size.attention_flops(20) == 4 * 6 * 16 * 2 * keys


@pytest.mark.parametrize("raw", [TINY, {**TINY, "tie_word_embeddings": True}, TINY_GPT2])
def test_counted_weights_are_those_a_model_multiplies_with(raw: dict[str, object]) -> None:
    config = parse_config(raw)
    size = ModelSize.of(config, "float32")
    counted = sum(linear.weight.numel() for linear in drawn(raw).linears)
    assert size.layer_params + size.head_params == counted


def drawn(raw: dict[str, object]) -> Model:
    checkpoint = random_checkpoint(Path("tiny"), "tiny", raw)
    with RandomWeights(checkpoint, torch.float32, torch.device("cpu")) as reader:
        return load_model(checkpoint.config, reader, 64, TorchOperations())


def test_attention_share_between_known_lengths() -> None:
    shares = [attention_share(length) for length in (1, 1024, 2896, 8192, 32768, 10**6)]
    assert shares == sorted(shares)
    assert shares[0] == shares[1] == 260 / 701
    assert shares[2] == pytest.approx((260 + 631) / 2 / 701, rel=0.001)
    assert shares[-1] == 656 / 701


def test_prompts_are_random_and_never_repeated() -> None:
    source = RandomPrompts(1000)
    first, second = (source.equal(8, 64, 4) for _ in range(2))
    assert repeats([first, second], 16) == 0
    assert repeats([first, first], 16) == 8
    assert first == RandomPrompts(1000).equal(8, 64, 4)


@pytest.mark.parametrize("num_sequences", [1, 2, 7, 8, 9, 40])
def test_a_draining_workload_goes_through_batches_of_all_sizes(num_sequences: int) -> None:
    ends = [one.num_output for one in RandomPrompts(100).draining(num_sequences, 4, 3).requests]
    sizes = {sum(end > step for end in ends) for step in range(max(ends))}
    assert max(sizes) == num_sequences
    assert set(range(1, min(8, num_sequences) + 1)) <= sizes
    steps = sorted(sizes)
    assert all(high - low <= 8 for low, high in pairwise(steps))
