"""The work list of paged_prefill: every row once, most keys first, and its tiles."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.prefill_plan import (
    MAX_SECTION_BYTES,
    fits_hopper,
    padded_dim,
    panel_columns,
    portable_tile,
    section_heads,
    work_items,
)

SEQUENCES = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 90)), max_size=5)


@given(SEQUENCES, st.sampled_from([16, 32]), st.sampled_from([0, 1, 40]))
def test_every_row_stands_in_the_list_once(
    sequences: list[tuple[int, int]], tile_rows: int, window: int
) -> None:
    query_lens = [num_rows for num_rows, _ in sequences]
    context_lens = [num_rows + before for num_rows, before in sequences]
    items = work_items(query_lens, context_lens, tile_rows, window)
    rows = [
        start + offset
        for start, num_rows, row, *_ in items
        for offset in range(row, min(row + tile_rows, num_rows))
    ]
    assert sorted(rows) == list(range(sum(query_lens)))
    for _, num_rows, _, length, sequence, *_ in items:
        assert (num_rows, length) == (query_lens[sequence], context_lens[sequence])


@given(SEQUENCES)
def test_most_keys_stand_first(sequences: list[tuple[int, int]]) -> None:
    query_lens = [num_rows for num_rows, _ in sequences]
    context_lens = [num_rows + before for num_rows, before in sequences]
    keys = [
        length - num_rows + min(row + 16, num_rows)
        for _, num_rows, row, length, *_ in work_items(query_lens, context_lens, 16, 0)
    ]
    assert keys == sorted(keys, reverse=True)


@pytest.mark.parametrize(("num_keys", "expected"), [(1024, 32), (16384, 16), (10**6, 4), (0, 32)])
def test_a_sections_keys_fit_in_the_cache(num_keys: int, expected: int) -> None:
    pool = torch.empty(1, 1, 2, 8, 16, 128, dtype=torch.bfloat16, device="meta")
    heads = section_heads(32, num_keys, pool)
    assert heads == expected
    assert heads == 4 or heads // 4 * num_keys * 2 * 128 * 2 <= MAX_SECTION_BYTES


@pytest.mark.parametrize(
    ("head_dim", "padded", "panel"),
    [(64, 64, 64), (80, 128, 16), (96, 128, 32), (128, 128, 64), (256, 256, 64), (16, 64, 16)],
)
def test_rows_in_shared_memory(head_dim: int, padded: int, panel: int) -> None:
    assert padded_dim(head_dim) == padded
    assert panel_columns(head_dim) == panel
    assert head_dim % panel == 0
    assert padded % panel == 0


def test_what_the_form_for_hopper_takes() -> None:
    assert all(fits_hopper(torch.bfloat16, size, 128) for size in (16, 32, 64, 128, 256))
    assert not fits_hopper(torch.bfloat16, 48, 128)
    assert not fits_hopper(torch.bfloat16, 16, 72)
    assert not fits_hopper(torch.float32, 16, 128)
    assert portable_tile(torch.float32, 256).num_rows < portable_tile(torch.float32, 64).num_rows
