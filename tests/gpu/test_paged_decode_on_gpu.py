"""paged_decode compiled: every type, head size, block size and table tile; one graph for all."""

import dataclasses

import pytest
import torch

from kernels.attention.decode_plan import DecodePlan
from kernels.attention.decode_tiles import TILES, DecodeTile, decode_tile
from kernels.attention.paged_decode import paged_decode
from tests.support.cases.decode_cases import (
    LAYER,
    MAX_ERRORS,
    DecodeCase,
    DecodeInputs,
    attend,
    decode_inputs,
    expected,
    relative_error,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LENGTHS = (1, 0, 16, 17, 700, 3001, 64, 65, 0)
CASE = DecodeCase(LENGTHS, num_kv_heads=8, head_dim=128, strided=True)
SHAPES = (
    CASE,
    *(dataclasses.replace(CASE, head_dim=size, num_kv_heads=2) for size in (64, 80, 96, 256)),
    *(dataclasses.replace(CASE, block_size=size) for size in (32, 64, 128)),
)
GROUPS = (1, 3, 8, 16)
MULTIPROCESSORS = 132


def _table_tile(case: DecodeCase, inputs: DecodeInputs, overlap: bool = False) -> DecodeTile:
    return decode_tile(len(case.lengths), inputs.kv_pool, MULTIPROCESSORS, overlap)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SHAPES, ids=lambda case: f"{case.head_dim}-{case.block_size}")
def test_output_equals_the_references(case: DecodeCase, dtype: torch.dtype) -> None:
    inputs = decode_inputs(case, dtype, "cuda")
    output = attend(case, inputs, _table_tile(case, inputs))
    assert relative_error(output, expected(case, inputs)) <= MAX_ERRORS[dtype]
    assert not output[1].any() and not output[8].any()


@pytest.mark.parametrize("group", GROUPS)
def test_any_group_and_window(group: int) -> None:
    case = dataclasses.replace(CASE, group=group, window=100, num_kv_heads=2)
    inputs = decode_inputs(case, torch.bfloat16, "cuda")
    output = attend(case, inputs, _table_tile(case, inputs))
    assert relative_error(output, expected(case, inputs)) <= MAX_ERRORS[torch.bfloat16]


@pytest.mark.parametrize("index", range(len(TILES)))
def test_every_tile_of_the_table(index: int) -> None:
    rows = max(1, int(min(TILES[index].max_heads, 12.0) * MULTIPROCESSORS / 8))
    case = DecodeCase(tuple((7 * row * row + 1) % 611 for row in range(rows)), 8, head_dim=128)
    inputs = decode_inputs(case, torch.bfloat16, "cuda")
    tile = _table_tile(case, inputs)
    assert tile.num_programs == TILES[index].programs * MULTIPROCESSORS
    assert relative_error(attend(case, inputs, tile), expected(case, inputs)) <= 1e-2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_value_is_found(dtype: torch.dtype) -> None:
    inputs = decode_inputs(CASE, dtype, "cuda")
    wanted = expected(CASE, inputs)
    block = int(inputs.block_tables[4, 700 // 16])
    inputs.kv_pool[block, LAYER, 1, 3, 5] += 500
    output = attend(CASE, inputs, _table_tile(CASE, inputs))
    assert relative_error(output, wanted) > MAX_ERRORS[dtype]


@pytest.mark.parametrize("merge_apart", [False, True], ids=["in_place", "apart"])
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_one_graph_serves_any_lengths(merge_apart: bool, overlap: bool) -> None:
    """Replays equal an eager call bit for bit, again and again, layer after layer."""
    inputs = decode_inputs(CASE, torch.bfloat16, "cuda")
    tile = dataclasses.replace(_table_tile(CASE, inputs, overlap), merge_apart=merge_apart)
    plan = DecodePlan.allocate(inputs.context_lens, inputs.q.shape[1], inputs.kv_pool, tile)
    arguments = (inputs.kv_pool, LAYER, inputs.block_tables, plan, CASE.scale)
    q, between, output = inputs.q.clone(), torch.empty_like(inputs.q), torch.empty_like(inputs.q)

    def two_layers() -> None:
        plan.fill()
        q.copy_(inputs.q)  # as in a step, other kernels come between plan and attention
        paged_decode(q, *arguments, between)
        paged_decode(between, *arguments, output)

    two_layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        two_layers()
    eager_plan = DecodePlan.allocate(
        inputs.context_lens,
        inputs.q.shape[1],
        inputs.kv_pool,
        dataclasses.replace(tile, overlap=False),
    )
    for lengths in (LENGTHS, (1, 0, 1, 1, 1, 1, 1, 0, 0), (0, 0, 16, 3, 512, 2999, 60, 1, 0)):
        inputs.context_lens.copy_(torch.tensor(lengths))
        eager_plan.fill()
        first, wanted = torch.empty_like(output), torch.empty_like(output)
        arguments = (*arguments[:3], eager_plan, CASE.scale)
        paged_decode(inputs.q, *arguments, first)
        paged_decode(first, *arguments, wanted)
        for _ in range(20):
            output.fill_(float("nan"))
            graph.replay()
            assert torch.equal(output, wanted)
        case = dataclasses.replace(CASE, lengths=lengths)
        assert relative_error(first, expected(case, inputs)) <= MAX_ERRORS[torch.bfloat16]
        assert relative_error(between, first) == 0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_is_allocated_and_nothing_waits() -> None:
    inputs = decode_inputs(CASE, torch.bfloat16, "cuda")
    tile = _table_tile(CASE, inputs)
    plan = DecodePlan.allocate(inputs.context_lens, inputs.q.shape[1], inputs.kv_pool, tile)
    output = torch.empty_like(inputs.q)

    def step() -> None:
        plan.fill()
        paged_decode(inputs.q, inputs.kv_pool, LAYER, inputs.block_tables, plan, CASE.scale, output)

    step()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_blocks_past_two_to_the_31_elements() -> None:
    case = DecodeCase((40,), num_kv_heads=8, head_dim=128)
    inputs = decode_inputs(case, torch.bfloat16, "cuda")
    shape = (2**31 // inputs.kv_pool[0].numel() + 5, *inputs.kv_pool.shape[1:])
    kv_pool = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
    kv_pool[-4:] = inputs.kv_pool
    wanted = expected(case, inputs)
    far = dataclasses.replace(inputs, kv_pool=kv_pool)
    far.block_tables[:, :3] += shape[0] - 4
    assert relative_error(attend(case, far, _table_tile(case, far)), wanted) <= 1e-2
