"""Units of weights and x on their way through shared memory, on Hopper, for skinny_hopper.

One warp copies them there by the tensor memory accelerator; with a norm, four more multiply x by
its weights before the product takes it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.linear.skinny_tiles import HOPPER_PANEL

PANEL = gl.constexpr(HOPPER_PANEL)
CHUNK = gl.constexpr(512)
"""norm weights that one load brings"""


@gluon.jit
def wait_for_kernel_before():
    gl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], gl.int32, False, 1)


@gluon.jit
def let_kernel_after_begin():
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // dummy $0", "=r", [], gl.int32, False, 1
    )


@gluon.constexpr_function
def sum_of(pieces):
    return sum(pieces)


@gluon.jit
def bring_weights(
    descs, smems, ready, tile, step, stage,
    COLUMNS: gl.constexpr, GATED: gl.constexpr, PIECES: gl.constexpr, X_ROWS: gl.constexpr,
    PANELS: gl.constexpr,
):  # fmt: skip
    """One unit of weights; its barrier expects the unit of x as well."""
    WIDTH: gl.constexpr = sum_of(PIECES)
    HALVES: gl.constexpr = 2 if GATED else 1
    barrier = ready.index(stage)
    mbarrier.expect(barrier, PANELS * PANEL * (WIDTH * HALVES + X_ROWS) * 2)
    row = tile * WIDTH
    for index in gl.static_range(len(PIECES)):
        for panel in gl.static_range(PANELS):
            for half in gl.static_range(HALVES):
                tma.async_copy_global_to_shared(
                    descs[index],
                    [row + half * COLUMNS, (step * PANELS + panel) * PANEL],
                    barrier,
                    smems[index].index((stage * PANELS + panel) * HALVES + half),
                )
        row += PIECES[index]


@gluon.jit
def bring_x(x_desc, x_smem, ready, step, stage, PANELS: gl.constexpr):
    for panel in gl.static_range(PANELS):
        tma.async_copy_global_to_shared(
            x_desc,
            [0, (step * PANELS + panel) * PANEL],
            ready.index(stage),
            x_smem.index(stage * PANELS + panel),
        )


@gluon.jit
def produce(
    descs, x_desc, smems, x_smem, ready, free, program, num_programs, count,
    COLUMNS: gl.constexpr, STEPS: gl.constexpr, GATED: gl.constexpr, PIECES: gl.constexpr,
    X_ROWS: gl.constexpr, PANELS: gl.constexpr, STAGES: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """All units of one program, one after the other."""
    EARLY: gl.constexpr = min(STAGES, STEPS)
    for step in range(EARLY):
        bring_weights(
            descs, smems, ready, program, step, step, COLUMNS, GATED, PIECES, X_ROWS, PANELS
        )
    if OVERLAP:  # weights are constant; all else may be written by the kernel before this one
        wait_for_kernel_before()
    for step in range(EARLY):
        bring_x(x_desc, x_smem, ready, step, step, PANELS)
    for number in range(EARLY, count):
        stage = number % STAGES
        step = number % STEPS
        tile = program + number // STEPS * num_programs
        mbarrier.wait(free.index(stage), (number // STAGES & 1) ^ 1)
        bring_weights(
            descs, smems, ready, tile, step, stage, COLUMNS, GATED, PIECES, X_ROWS, PANELS
        )
        bring_x(x_desc, x_smem, ready, step, stage, PANELS)


@gluon.constexpr_function
def row_layout(num_rows, num_warps):
    """Of a panel of x. Each element is one thread's: they are changed in place."""
    wide = min(8, num_rows * 64 // (32 * num_warps))
    return gl.BlockedLayout([1, wide], [wide // 2, 64 // wide], [num_warps, 1], [1, 0])


@gluon.jit
def keep_scales(norm_ptr, scale_smem, INPUTS: gl.constexpr, NUM_WARPS: gl.constexpr):
    """Norm weights to shared memory, once per program; they are constant."""
    layout: gl.constexpr = gl.BlockedLayout([CHUNK // 32 // NUM_WARPS], [32], [NUM_WARPS], [0])
    CHUNKS: gl.constexpr = (INPUTS + CHUNK - 1) // CHUNK
    chunks = scale_smem._reinterpret(scale_smem.dtype, [CHUNKS, CHUNK], scale_smem.layout)
    scales = ()
    for chunk in gl.static_range(CHUNKS):  # all under way before the first is waited for
        inputs = chunk * CHUNK + gl.arange(0, CHUNK, layout)
        scales = scales + (gl.load(norm_ptr + inputs, inputs < INPUTS, other=0.0),)  # noqa: RUF005
    for chunk in gl.static_range(CHUNKS):
        chunks.index(chunk).store(scales[chunk])
    gl.thread_barrier()


@gluon.jit
def scale_rows(
    x_smem, scale_smem, square_smem, ready, scaled, squared, read, norm_ptr, program, num_programs,
    eps,
    INPUTS: gl.constexpr, TILES: gl.constexpr, STEPS: gl.constexpr, PANELS: gl.constexpr,
    STAGES: gl.constexpr, NUM_WARPS: gl.constexpr,
):  # fmt: skip
    """Multiply x by the norm's weights, in place, before it is multiplied by W, and leave what
    each row of a product is to be multiplied by in `square_smem`."""
    X_ROWS: gl.constexpr = x_smem.shape[1]
    layout: gl.constexpr = row_layout(X_ROWS, NUM_WARPS)
    keep_scales(norm_ptr, scale_smem, INPUTS, NUM_WARPS)
    number = 0
    for _ in range(program, TILES, num_programs):
        squares = gl.zeros([X_ROWS, PANEL], gl.float32, layout)
        for step in range(STEPS):
            stage = number % STAGES
            mbarrier.wait(ready.index(stage), number // STAGES & 1)
            panels = ()
            for panel in gl.static_range(PANELS):
                wide = x_smem.index(stage * PANELS + panel).load(layout).to(gl.float32)
                squares += wide * wide
                scale = scale_smem.index(step * PANELS + panel).load(gl.SliceLayout(0, layout))
                wide = wide * scale.to(gl.float32)[None, :]
                panels = panels + (wide.to(x_smem.dtype),)  # noqa: RUF005
            for panel in gl.static_range(PANELS):
                x_smem.index(stage * PANELS + panel).store(panels[panel])
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(scaled.index(stage))
            number += 1
        mbarrier.wait(read, number // STEPS & 1)
        square_smem.index(0).store(gl.rsqrt(gl.sum(squares, 1) / INPUTS + eps))
        gl.thread_barrier()
        mbarrier.arrive(squared)
