"""Layer groups: they divide a block without gaps, into pieces that are worth a copy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kv.layer_groups import (
    LAST_LAYERS,
    MAX_GROUPS,
    MIN_PIECE_BYTES,
    GroupRange,
    LayerGroups,
    layer_groups,
)
from shared.kv.layout import KVLayout


def layout_of(num_layers: int, layer_bytes: int) -> KVLayout:
    layout = KVLayout("m", "float16", num_layers, 2, 1, layer_bytes // 4, 1)
    assert layout.layer_bytes == layer_bytes
    return layout


@pytest.mark.parametrize(
    ("num_layers", "layer_bytes", "layer_ends"),
    [
        (1, 64, (1,)),
        (2, 64, (2,)),
        (3, 64, (1, 3)),
        (12, 64, (10, 12)),  # small blocks: a copy of any part costs as much as of all
        (32, 64 * 2**10, (4, 8, 12, 17, 21, 25, 30, 32)),  # Llama-3.1-8B, 16 positions a block
        (9, MIN_PIECE_BYTES, (1, 2, 3, 4, 5, 6, 7, 9)),
    ],
)
def test_where_groups_end(num_layers: int, layer_bytes: int, layer_ends: tuple[int, ...]) -> None:
    assert layer_groups(layout_of(num_layers, layer_bytes)).layer_ends == layer_ends


@given(st.integers(1, 130), st.integers(1, 2**18))
def test_groups_cover_a_block_in_pieces_worth_a_copy(num_layers: int, quarter_bytes: int) -> None:
    layout = layout_of(num_layers, 4 * quarter_bytes)
    groups = layer_groups(layout)
    assert 1 <= len(groups) <= MAX_GROUPS
    spans = [groups.span(GroupRange(group, 1)) for group in range(len(groups))]
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == layout.block_bytes
    sizes = [span.stop - span.start for span in spans]
    assert all(size > 0 and size % layout.layer_bytes == 0 for size in sizes)
    assert sizes[-1] <= LAST_LAYERS * layout.layer_bytes
    assert len(groups) <= 2 or min(sizes[:-1]) >= MIN_PIECE_BYTES


def test_a_range_of_groups_is_one_slice_of_a_block() -> None:
    groups = layer_groups(layout_of(9, MIN_PIECE_BYTES))
    some = GroupRange(2, 3)
    assert some.end == 5
    assert groups.span(some) == slice(2 * MIN_PIECE_BYTES, 5 * MIN_PIECE_BYTES)
    assert groups.num_bytes(some) == 3 * MIN_PIECE_BYTES
    assert groups.span(groups.all) == slice(0, 9 * MIN_PIECE_BYTES)


def test_bounds_are_where_groups_begin_in_whole_units() -> None:
    groups = LayerGroups((2, 3, 6), 24)
    assert groups.bounds(8) == (0, 6, 9, 18)
    assert groups.bounds(1) == (0, 48, 72, 144)
    with pytest.raises(ValueError, match="multiples of 16"):
        groups.bounds(16)
