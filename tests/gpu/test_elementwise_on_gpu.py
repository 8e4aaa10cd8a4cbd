"""The elementwise kernels compiled: every type and head size, large and far
rows, and launches that overlap."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from kernels.elementwise import reference
from kernels.elementwise.rms_norm import rms_norm
from kernels.elementwise.rope_store import rope_store
from kernels.elementwise.silu_mul import silu_mul
from tests.support.cases.elementwise_cases import (
    EPS,
    RopeCase,
    RopeInputs,
    all_close,
    make_rows,
    rope_expected,
    rope_inputs,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTHS = (64, 100, 1024, 2560, 4096, 5120, 8192, 16384)
ROPE_CASE = RopeCase(num_tokens=300, num_heads=32, num_kv_heads=8, head_dim=128, num_skipped=20)
ROPE_CASES = (
    *(dataclasses.replace(ROPE_CASE, head_dim=size, norm=True) for size in (64, 80, 96, 128, 256)),
    *(dataclasses.replace(ROPE_CASE, block_size=size, in_place=True) for size in (16, 64, 128)),
    RopeCase(num_tokens=8192, num_heads=14, num_kv_heads=2, head_dim=64, in_place=True, norm=True),
    RopeCase(num_tokens=33, num_heads=71, num_kv_heads=1, head_dim=80),
)
FAR = 2**31
"""elements between two rows"""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_equal_the_references(width: int, dtype: torch.dtype) -> None:
    x = make_rows(1000, width, dtype, "cuda", strided=True)
    weight = make_rows(1, width, dtype, "cuda")[0]
    output, expected = torch.empty(2, 1000, width, dtype=dtype, device="cuda")
    rms_norm(x, weight, EPS, output)
    reference.rms_norm(x, weight, EPS, expected)
    assert all_close(output, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(8192, 4864), (3, 14336), (1, 100)], ids=str)
def test_silu_mul_equals_the_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = make_rows(shape[0], 2 * shape[1], dtype, "cuda", strided=True) * 3
    output, expected = torch.empty(2, *shape, dtype=dtype, device="cuda")
    silu_mul(gate_up, output)
    reference.silu_mul(gate_up, expected)
    assert all_close(output, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ROPE_CASES, ids=str)
def test_rope_store_equals_the_reference(case: RopeCase, dtype: torch.dtype) -> None:
    inputs = rope_inputs(case, dtype, "cuda")
    queries, kv_pool = rope_expected(inputs)
    _rope_store(inputs)
    assert all_close(inputs.queries, queries)
    assert all_close(inputs.kv_pool, kv_pool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_element_is_found(dtype: torch.dtype) -> None:
    inputs = rope_inputs(ROPE_CASES[3], dtype, "cuda")
    queries, kv_pool = rope_expected(inputs)
    inputs.qkv[-1, -1] += 0.1
    inputs.qkv[-1, 0] *= 1.1
    _rope_store(inputs)
    assert not all_close(inputs.queries, queries)
    assert not all_close(inputs.kv_pool, kv_pool)
    x = make_rows(9, 4096, dtype, "cuda")
    output, expected = torch.empty(2, 9, 4096, dtype=dtype, device="cuda")
    reference.rms_norm(x, x[0].clone(), EPS, expected)
    rms_norm(x, x[0] * 1.02, EPS, output)
    assert not all_close(output, expected)
    reference.silu_mul(x, expected[:, :2048])
    x[-1, -1] += 0.1
    silu_mul(x, output[:, :2048])
    assert not all_close(output[:, :2048], expected[:, :2048])


def test_rows_past_two_to_the_31_elements() -> None:
    storage = torch.zeros(FAR + 8192, dtype=torch.float16, device="cuda")
    far = storage.as_strided((2, 4096), (FAR, 1))
    far.copy_(make_rows(2, 4096, torch.float16, "cuda"))
    weight, near = far[0].clone(), far.contiguous()
    for x in (far, near):
        rms_norm(x, weight, EPS, x)
    assert torch.equal(far, near)
    halves = torch.empty(2, 2, 2048, dtype=torch.float16, device="cuda")
    silu_mul(far, halves[0])
    silu_mul(near, halves[1])
    assert torch.equal(halves[0], halves[1])
    assert not storage[4096:FAR].any()


def test_blocks_past_two_to_the_31_elements() -> None:
    inputs = rope_inputs(ROPE_CASE, torch.bfloat16, "cuda")
    num_blocks = FAR // inputs.kv_pool[0].numel() + 5
    kv_pool = torch.zeros(
        num_blocks, *inputs.kv_pool.shape[1:], dtype=torch.bfloat16, device="cuda"
    )
    last = kv_pool[-len(inputs.kv_pool) :]
    last.copy_(inputs.kv_pool)
    slots = inputs.slot_mapping + (num_blocks - len(last)) * ROPE_CASE.block_size
    slots[: ROPE_CASE.num_skipped] = -1
    _, expected = rope_expected(inputs)
    _rope_store(dataclasses.replace(inputs, kv_pool=kv_pool, slot_mapping=slots))
    assert all_close(last, expected)
    assert not kv_pool[: -len(last)].any()


@pytest.mark.parametrize("num_rows", [1, 300])
def test_overlapping_launches_equal_plain_ones(num_rows: int) -> None:
    """A chain in which each kernel reads what the one before wrote, replayed from a graph."""
    case = dataclasses.replace(ROPE_CASE, num_tokens=num_rows, num_skipped=0, norm=True)
    inputs = rope_inputs(case, torch.bfloat16, "cuda")
    start = make_rows(num_rows, 6144, torch.bfloat16, "cuda")
    weight = make_rows(1, 6144, torch.bfloat16, "cuda")[0]
    x, first = torch.empty_like(start), torch.empty_like(start)
    halves = torch.empty(num_rows, 3072, dtype=torch.bfloat16, device="cuda")
    chained = dataclasses.replace(inputs, qkv=first)

    def chain(overlap: bool) -> None:
        x.copy_(start)
        for _ in range(4):
            rms_norm(x, weight, EPS, first, overlap=overlap)
            _rope_store(chained, overlap=overlap)
            silu_mul(first, halves, overlap=overlap)
            rms_norm(first, weight, EPS, x, overlap=overlap)

    results = (x, first, halves, inputs.queries, inputs.kv_pool)
    chain(False)
    expected = [tensor.clone() for tensor in results]
    replay = _captured(lambda: chain(True))
    for _ in range(50):
        for tensor in (halves, inputs.queries):
            tensor.fill_(float("nan"))
        replay()
        for tensor, wanted in zip(results, expected, strict=True):
            assert torch.equal(tensor, wanted)


def _rope_store(inputs: RopeInputs, overlap: bool = False) -> None:
    fields = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    rope_store(**fields, eps=EPS, overlap=overlap)


def _captured(work: Callable[[], None]) -> Callable[[], None]:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
