"""rope_store against its torch reference; interpreted where there is no GPU."""

import dataclasses

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.elementwise import reference
from kernels.elementwise.rope_store import rope_store, rope_store_kernel, rope_store_tile
from shared.engine.layers.rope import rotate
from tests.support.cases.elementwise_cases import (
    EPS,
    RopeCase,
    RopeInputs,
    all_close,
    rope_expected,
    rope_inputs,
)

INTERPRETED = isinstance(rope_store_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.float16)
CASES = (
    RopeCase(num_tokens=1, num_heads=1, num_kv_heads=1, head_dim=16),
    RopeCase(num_tokens=7, num_heads=4, num_kv_heads=2, head_dim=64, num_skipped=3, norm=True),
    RopeCase(num_tokens=5, num_heads=6, num_kv_heads=3, head_dim=80, block_size=7, in_place=True),
    RopeCase(num_tokens=3, num_heads=5, num_kv_heads=5, head_dim=96, block_size=1, norm=True),
    RopeCase(num_tokens=2, num_heads=32, num_kv_heads=8, head_dim=128, in_place=True, norm=True),
    RopeCase(num_tokens=3, num_heads=3, num_kv_heads=1, head_dim=256, block_size=64),
    RopeCase(num_tokens=2, num_heads=2, num_kv_heads=1, head_dim=6, num_skipped=2),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_queries_and_pool_equal_the_references(case: RopeCase, dtype: torch.dtype) -> None:
    inputs = rope_inputs(case, dtype, DEVICE)
    queries, kv_pool = rope_expected(inputs)
    before = inputs.kv_pool.clone()
    _store(inputs)
    assert all_close(inputs.queries, queries)
    assert all_close(inputs.kv_pool, kv_pool)
    written = kv_pool != before
    assert torch.equal(inputs.kv_pool[~written], before[~written])


def test_values_keep_their_bits() -> None:
    inputs = rope_inputs(CASES[1], torch.float16, DEVICE)
    values = inputs.qkv.unflatten(1, (-1, 64))[:, 6:]
    values[-1, :, :4] = torch.tensor([float("inf"), float("nan"), -0.0, 6e-8], device=DEVICE)
    _store(inputs)
    block, offset = divmod(int(inputs.slot_mapping[-1]), 16)
    stored = inputs.kv_pool[block, inputs.layer, 1, :, offset]
    assert torch.equal(stored.view(torch.int16), values[-1].view(torch.int16))


def test_the_reference_turns_as_the_engine_does() -> None:
    inputs = rope_inputs(CASES[0], torch.float32, "cpu")
    queries, _ = rope_expected(inputs)
    cos, sin = (table[inputs.positions][:, None] for table in (inputs.cos, inputs.sin))
    assert torch.equal(queries, rotate(inputs.qkv.unflatten(1, (-1, 16))[:, :1], cos, sin))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("field", ["qkv", "cos", "sin", "positions", "slot_mapping", "qk_norm"])
def test_one_wrong_element_is_found(field: str, dtype: torch.dtype) -> None:
    inputs = rope_inputs(CASES[1], dtype, DEVICE)
    queries, kv_pool = rope_expected(inputs)
    last = getattr(inputs, field).view(-1)[-1:]
    if field in {"cos", "sin"}:
        last = getattr(inputs, field)[inputs.positions[-1], -1:]
    if last.is_floating_point():
        last += 0.01 + 0.01 * last.abs()
    else:
        last.copy_(last - 1 if last else last + 1)
    _store(inputs)
    assert not (all_close(inputs.queries, queries) and all_close(inputs.kv_pool, kv_pool))


def test_nothing_happens_without_tokens() -> None:
    inputs = rope_inputs(CASES[0], torch.float32, DEVICE)
    before = inputs.kv_pool.clone()
    none = dataclasses.replace(
        inputs,
        qkv=inputs.qkv[:0],
        positions=inputs.positions[:0],
        slot_mapping=inputs.slot_mapping[:0],
        queries=inputs.queries[:0],
    )
    _store(none)
    assert torch.equal(inputs.kv_pool, before)


def test_bfloat16_is_refused_by_the_interpreter() -> None:
    inputs = rope_inputs(CASES[0], torch.bfloat16, DEVICE)
    if INTERPRETED:
        with pytest.raises(TypeError, match="bfloat16"):
            _store(inputs)


@pytest.mark.parametrize("head_dim", [2, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("num_heads", [3, 48, 71])
def test_a_tile_holds_whole_heads(num_heads: int, head_dim: int) -> None:
    heads, half, num_warps = rope_store_tile(num_heads, head_dim)
    assert 2 * half >= head_dim
    assert heads * 2 * half <= 1024
    assert 1 <= num_warps <= 8


def test_the_reference_stores_as_store_kv_does() -> None:
    inputs = rope_inputs(dataclasses.replace(CASES[1], norm=False), torch.float32, "cpu")
    cos, sin = torch.ones_like(inputs.cos), torch.zeros_like(inputs.sin)
    queries, kv_pool = rope_expected(dataclasses.replace(inputs, cos=cos, sin=sin))
    heads = inputs.qkv.unflatten(1, (-1, 64))
    expected = inputs.kv_pool.clone()
    reference.store_kv(heads[:, 4:6], heads[:, 6:], expected, inputs.layer, inputs.slot_mapping)
    assert torch.equal(kv_pool, expected)
    assert torch.equal(queries, heads[:, :4])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"qkv": torch.zeros(1, 32)}, ValueError),
        ({"qkv": torch.zeros(2, 48)}, ValueError),
        ({"qkv": torch.zeros(1, 96)[:, ::2]}, ValueError),
        ({"qkv": torch.zeros(1, 48).half()}, TypeError),
        ({"qkv": torch.zeros(1, 48, device="meta")}, ValueError),
        ({"cos": torch.zeros(40, 16)}, ValueError),
        ({"sin": torch.zeros(40, 8).half()}, TypeError),
        ({"positions": torch.zeros(1, dtype=torch.int32)}, TypeError),
        ({"positions": torch.zeros(2, dtype=torch.int64)}, ValueError),
        ({"slot_mapping": torch.zeros(1, dtype=torch.int32)}, TypeError),
        ({"kv_pool": torch.zeros(3, 3, 2, 1, 16, 32)[..., ::2]}, ValueError),
        ({"kv_pool": torch.zeros(3, 3, 2, 1, 16, 15)}, ValueError),
        ({"layer": 3}, ValueError),
        ({"queries": torch.zeros(1, 1, 32)}, ValueError),
        ({"queries": torch.zeros(1, 1, 32)[..., ::2]}, ValueError),
        ({"qk_norm": torch.zeros(1, 16)}, ValueError),
        ({"qk_norm": torch.zeros(2, 16).half()}, TypeError),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, torch.Tensor | int], error: type[Exception]
) -> None:
    inputs = rope_inputs(CASES[0], torch.float32, "cpu")
    with pytest.raises(error):
        _store(dataclasses.replace(inputs, **change))  # type: ignore[arg-type]


def _store(inputs: RopeInputs) -> None:
    fields = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    rope_store(**fields, eps=EPS)
