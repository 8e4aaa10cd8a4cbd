"""The table of skinny_linear: how much each program takes, and that it fits."""

import pytest
import torch

from kernels.linear.skinny_tiles import (
    MAX_STAGES,
    SHARED_BYTES,
    SkinnyTile,
    SkinnyWorkspace,
    column_pieces,
    skinny_tile,
    tile_width,
)

MULTIPROCESSORS = 132
SHAPES = (
    ((6144, 4096), False, True),
    ((4096, 4096), False, False),
    ((28672, 4096), True, True),
    ((4096, 14336), False, False),
    ((128256, 4096), False, True),
    ((4096, 1024), False, True),
    ((1024, 2048), False, False),
    ((6144, 1024), True, True),
    ((1024, 3072), False, False),
    ((151936, 1024), False, True),
    ((10240, 8192), False, True),
    ((57344, 8192), True, True),
    ((64, 64), False, False),
)
"""(weight, gated, normalised)"""
ROWS = (1, 8, 9, 16, 17, 32, 33, 64)


@pytest.mark.parametrize(
    ("columns", "width"),
    [(4096, 32), (6144, 48), (14336, 112), (12288, 96), (3072, 24), (1024, 8), (128256, 128)],
)
def test_one_program_takes_one_tile_or_equal_numbers(columns: int, width: int) -> None:
    assert tile_width(columns, MULTIPROCESSORS) == width
    assert sum(column_pieces(width)) == width


@pytest.mark.parametrize("width", [0, 4, 12, 120, 256])
def test_a_width_the_tensor_cores_have_no_pieces_for_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="powers of two"):
        column_pieces(width)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("weight", "gated", "norm"), SHAPES)
def test_every_ring_fits_beside_the_norm(
    weight: tuple[int, int], gated: bool, norm: bool, rows: int
) -> None:
    tile = skinny_tile(rows, weight, torch.bfloat16, gated=gated, norm=norm)
    if tile is None:
        return
    assert tile.hopper and tile.num_rows >= rows
    assert column_pieces(tile.num_columns // (1 + gated))
    stages = tile.stages_beside(2 * weight[1] if norm else 0)
    assert 2 <= stages <= tile.num_stages <= MAX_STAGES
    assert stages * tile.unit_bytes * tile.num_resident <= SHARED_BYTES


def test_where_the_vendor_is_faster_there_is_no_tile() -> None:
    assert skinny_tile(128, (4096, 4096), torch.bfloat16) is None
    assert skinny_tile(64, (6144, 4096), torch.bfloat16, norm=True) is None
    assert skinny_tile(64, (4096, 4096), torch.bfloat16) is not None
    assert skinny_tile(0, (4096, 4096), torch.bfloat16) is None
    assert skinny_tile(257, (4096, 4096), torch.float32) is None


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_other_gpus_and_odd_inputs_get_the_portable_form(capability: tuple[int, int]) -> None:
    for weight, chosen in (((4096, 4096), capability), ((4096, 65), (9, 0))):
        tile = skinny_tile(16, weight, torch.bfloat16, capability=chosen)
        assert tile is not None and not tile.hopper
    exact = skinny_tile(200, (4096, 4096), torch.float32)
    assert exact is not None and not exact.hopper and exact.num_rows == 256


def test_the_workspace_is_as_large_as_its_largest_tile() -> None:
    small = SkinnyTile(32, 32, 4, 1, 10, 16)
    large = SkinnyTile(64, 32, 4, 1, 20, 32)
    whole = skinny_tile(1, (4096, 4096), torch.bfloat16)
    assert whole is not None
    workspace = SkinnyWorkspace.allocate([small, None, large, whole], "cpu")
    assert workspace.parts.numel() == 2 * 20 * 64 * 32
    assert workspace.num_bytes >= 4 * workspace.parts.numel()
    for tile in (small, large, whole):
        workspace.check_fits(tile)
    with pytest.raises(ValueError, match="allocated"):
        SkinnyWorkspace.allocate([small], "cpu").check_fits(large)
