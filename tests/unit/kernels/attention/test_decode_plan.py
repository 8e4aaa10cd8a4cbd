"""The cut of decoding sequences: every visible tile belongs to exactly one program."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpretedFunction

from kernels.attention.decode_plan import DecodePlan, plan_kernel
from kernels.attention.decode_tiles import TILES, DecodeTile, decode_tile, tile_parts, tile_rows

DEVICE = "cpu" if isinstance(plan_kernel, InterpretedFunction) else "cuda"
NUM_KEYS = 16


def make_plan(
    lengths: list[int],
    num_kv_heads: int,
    num_programs: int,
    window: int,
    num_resident: int = 0,
    least_run: int = 1,
) -> DecodePlan:
    kv_pool = torch.zeros(1, 1, 2, num_kv_heads, 16, 8, device=DEVICE)
    context_lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    tile = DecodeTile(NUM_KEYS, 4, 2, num_programs, num_resident, least_run)
    plan = DecodePlan.allocate(context_lens, num_kv_heads, kv_pool, tile, window)
    plan.entries.fill_(-1)
    plan.fill()
    return plan


def wanted_units(lengths: list[int], num_kv_heads: int, window: int) -> list[tuple[int, int, int]]:
    """(row, head, tile) in order."""
    spans = [
        range(max(0, length - (window or length)) // NUM_KEYS, -(-length // NUM_KEYS))
        for length in lengths
    ]
    return [
        (row, head, tile - span.start)
        for row, span in enumerate(spans)
        for head in range(num_kv_heads)
        for tile in span
    ]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.sampled_from([0, 0, 1, 15, 16, 17, 33, 64, 200]), min_size=1, max_size=20),
    num_kv_heads=st.integers(1, 3),
    programs=st.tuples(st.integers(1, 30), st.integers(0, 10)).filter(
        lambda drawn: drawn[0] >= drawn[1]
    ),
    window=st.sampled_from([0, 1, 16, 17, 40]),
    least_run=st.integers(1, 5),
)
def test_programs_take_all_units_in_order(
    lengths: list[int],
    num_kv_heads: int,
    programs: tuple[int, int],
    window: int,
    least_run: int,
) -> None:
    """`programs`: in all, and at once."""
    num_programs, num_resident = programs
    plan = make_plan(lengths, num_kv_heads, num_programs, window, num_resident, least_run)
    wanted = wanted_units(lengths, num_kv_heads, window)
    assert plan.num_programs >= max(num_programs, len(lengths))
    longest = max((tile + 1 for _, _, tile in wanted), default=0)
    taken = 0
    for program, entry in enumerate(plan.entries.tolist()):
        row, head, tile, count, run, length, empty, _ = entry
        assert min(least_run, longest) <= run
        assert count <= run and (count == run or taken + count == len(wanted))
        if count:
            assert taken == program * run
            assert (row, head, tile) == wanted[taken] and length == lengths[row]
        assert empty == (program < len(lengths) and lengths[program] == 0)
        taken += count
    assert taken == len(wanted)
    for row, start in enumerate(plan.starts.tolist()):
        assert all(unit[0] < row for unit in wanted[:start])
        assert all(unit[0] >= row for unit in wanted[start:])


def test_programs_that_do_not_exist_run_at_no_time() -> None:
    """Units cut for three would leave the third's to nobody."""
    with pytest.raises(ValueError, match="3 of 2 programs"):
        DecodeTile(NUM_KEYS, 4, 2, num_programs=2, num_resident=3)


def test_equal_heads_are_not_split_if_programs_suffice() -> None:
    plan = make_plan([64] * 5, 2, 12, 0, num_resident=6)
    assert [entry[3] for entry in plan.entries.tolist()] == [4] * 10 + [0] * 2


def test_one_long_row_is_shared_by_those_that_run_at_once() -> None:
    plan = make_plan([16] * 3 + [480], 1, 12, 0, num_resident=6)
    assert [entry[3] for entry in plan.entries.tolist()] == [6] * 5 + [3] + [0] * 6


def test_a_short_context_is_not_cut_in_many_parts() -> None:
    plan = make_plan([64], 2, 12, 0, least_run=3)
    assert [entry[3] for entry in plan.entries.tolist()] == [3, 3, 2] + [0] * 9
    plan = make_plan([16, 30], 2, 12, 0, least_run=3)
    assert [entry[3] for entry in plan.entries.tolist()] == [2, 2, 2] + [0] * 9


def test_lengths_of_another_type_are_refused() -> None:
    kv_pool = torch.zeros(1, 1, 2, 2, 16, 8)
    tile = DecodeTile(NUM_KEYS, 4, 2, 4)
    with pytest.raises(TypeError):
        DecodePlan.allocate(torch.zeros(3, dtype=torch.int64), 2, kv_pool, tile)
    with pytest.raises(ValueError, match="3 heads over 2"):
        DecodePlan.allocate(torch.zeros(3, dtype=torch.int32), 3, kv_pool, tile)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_batch_has_a_tile(head_dim: int, dtype: torch.dtype) -> None:
    kv_pool = torch.zeros(1, 1, 2, 8, 16, head_dim, dtype=dtype)
    for num_rows in range(1, 300):
        tile = decode_tile(num_rows, kv_pool, 132)
        assert tile.num_keys >= 16 and tile.num_keys & (tile.num_keys - 1) == 0
        assert tile.num_programs % 132 == 0 and not tile.overlap


def test_the_table_is_in_order() -> None:
    assert [row.max_heads for row in TILES] == sorted({row.max_heads for row in TILES})
    assert TILES[-1].max_heads == float("inf")


def test_rows_and_parts_fit_the_tensor_cores_and_the_registers() -> None:
    assert [tile_rows(group, exact=False) for group in (1, 4, 16, 17)] == [16, 16, 16, 32]
    assert [tile_rows(group, exact=True) for group in (1, 3, 16)] == [1, 4, 16]
    assert [tile_parts(size, 4) for size in (64, 512, 16 * 256)] == [64, 8, 1]
