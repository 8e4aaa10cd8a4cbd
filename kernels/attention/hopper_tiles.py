"""Tiles of keys and values from the pool to shared memory, on Hopper, for paged_prefill_hopper.

The tensor memory accelerator copies boxes of one tensor; a block, or what of it lies in a tile,
is one box, so a tile is as many copies as it touches blocks. One warp issues them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


@gluon.constexpr_function
def tile_offsets(tile_keys, tile_dim, panel):
    """Where a tile's elements lie in shared memory: groups of 8 keys, of each first the leading
    `panel` columns, then the next ones, every such piece swizzled as the tensor cores want it.
    A block of the pool comes in one copy then, however few positions it has."""
    columns = [[0, 1 << bit] for bit in range(bits(panel))]
    free = 3 - bits(panel // 8)
    keys = [[1 << bit, 0 if bit < free else 8 << bit - free] for bit in range(3)]
    panels = [[0, panel << bit] for bit in range(bits(tile_dim // panel))]
    groups = [[8 << bit, 0] for bit in range(bits(tile_keys // 8))]
    return gl.SharedLinearLayout(columns + keys + panels + groups, [], 1024)


@gluon.constexpr_function
def bits(power_of_two):
    return power_of_two.bit_length() - 1


@gluon.jit
def locate(
    tile, table, first_block, last_block, group, block_groups,
    BLOCK_SIZE: gl.constexpr, TILE_KEYS: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """Groups of 8 rows of the descriptor where the tile's boxes begin. The table is not read
    outside the sequence or left of the window; what comes instead is masked."""
    groups = ()
    for box in gl.static_range(TILE_KEYS // BOX):
        if BLOCK_SIZE > TILE_KEYS:
            block = tile // (BLOCK_SIZE // TILE_KEYS)
            within = tile % (BLOCK_SIZE // TILE_KEYS) * (TILE_KEYS // 8)
        else:
            block = tile * (TILE_KEYS // BLOCK_SIZE) + box
            within = 0
        block = gl.maximum(gl.minimum(block, last_block), first_block)
        at = gl.load(table + block) * block_groups + group + within
        groups = groups + (at,)  # noqa: RUF005  (the compiler knows no unpacking)
    return groups


@gluon.jit
def bring(
    kv_desc, groups, offset, smem, ready, free, number,
    TILE_KEYS: gl.constexpr, TILE_DIM: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """The `number`-th tile of keys or values to shared memory, once its place is free."""
    PANEL: gl.constexpr = kv_desc.block_shape[3]
    stage = number % STAGES
    box_shape: gl.constexpr = [TILE_KEYS // BOX, BOX // 8, TILE_DIM // PANEL, 8, PANEL]
    boxes = smem.index(stage)._reinterpret(smem.dtype, box_shape, kv_desc.layout)
    mbarrier.wait(free.index(stage), (number // STAGES & 1) ^ 1)
    mbarrier.expect(ready.index(stage), TILE_KEYS * TILE_DIM * 2)
    for box in gl.static_range(TILE_KEYS // BOX):
        tma.async_copy_global_to_shared(
            kv_desc, [groups[box] + offset, 0, 0, 0], ready.index(stage), boxes.index(box)
        )


@gluon.jit
def produce(
    kv_desc, k_smem, v_smem, ready_k, ready_v, free_k, free_v, table, first_tile, end_tile,
    first_block, last_block, group, block_groups,
    PLANE: gl.constexpr, BLOCK_SIZE: gl.constexpr, TILE_KEYS: gl.constexpr,
    TILE_DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Keys one tile ahead of values, as the consumers take them."""
    BOX: gl.constexpr = min(BLOCK_SIZE, TILE_KEYS)
    number = 0
    tile = end_tile - 1
    groups = locate(
        tile, table, first_block, last_block, group, block_groups, BLOCK_SIZE, TILE_KEYS, BOX
    )
    bring(kv_desc, groups, 0, k_smem, ready_k, free_k, 0, TILE_KEYS, TILE_DIM, STAGES, BOX)
    while tile > first_tile:
        tile -= 1
        number += 1
        groups_before = groups
        groups = locate(
            tile, table, first_block, last_block, group, block_groups, BLOCK_SIZE, TILE_KEYS, BOX
        )
        bring(kv_desc, groups, 0, k_smem, ready_k, free_k, number, TILE_KEYS, TILE_DIM, STAGES, BOX)
        bring(
            kv_desc, groups_before, PLANE, v_smem, ready_v, free_v, number - 1,
            TILE_KEYS, TILE_DIM, STAGES, BOX,
        )  # fmt: skip
    bring(kv_desc, groups, PLANE, v_smem, ready_v, free_v, number, TILE_KEYS, TILE_DIM, STAGES, BOX)
