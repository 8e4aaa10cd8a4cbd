"""Variants of the sampling kernels: compile_all.py compiles them."""

from collections.abc import Iterator
from typing import Any

from kernels.sampling import choose_tokens as sampling
from kernels.sampling.adjust import ADJUST_WARPS, TILE, adjust_kernel
from kernels.sampling.draw import draw_kernel, masses_kernel
from kernels.sampling.peaks import likeliest_kernel, peaks_kernel
from kernels.sampling.rows import GRAIN
from kernels.sampling.search import search_kernel
from tests.unit.kernels.variant import CAPABILITIES, DTYPES, OVERLAPPING, Variant, make_source

TYPES = {
    "adjusted_ptr": "*fp32",
    "peak_ptr": "*fp32",
    "bias_ptr": "*fp32",
    "id_ptr": "*i32",
    "arrival_ptr": "*i32",
    "count_ptr": "*i32",
    "length_ptr": "*i32",
    "live_ptr": "*fp32",
    "row_ptr": "*i64",
    "sum_ptr": "*i64",
    "part_ptr": "*i64",
    "output_ptr": "*i64",
}
ALIGNED = ("vocab_size", "row_stride", "split_size")


def variants() -> Iterator[Variant]:
    """Every kernel for every type of logits, for one of them with adjusted rows."""
    for capability in CAPABILITIES:
        overlap = {"OVERLAP": capability >= OVERLAPPING}
        yield variant(likeliest_kernel, "-", capability, {"HAS_ROWS": True} | overlap, 1)
        for name, dtype in DTYPES.items():
            flags: dict[str, Any] = overlap | {"HAS_ADJUSTED": name == "bf16"}
            yield variant(adjust_kernel, name, capability, {"TILE": TILE}, ADJUST_WARPS)
            warps = sampling.PEAK_WARPS
            tile = {"THREADS": 32 * warps, "VECTOR": 16 // dtype.itemsize} | flags
            yield variant(peaks_kernel, name, capability, tile, warps)
            for kernel in (masses_kernel, draw_kernel):
                chunks = {"MAX_CHUNKS": 128} | flags
                yield variant(kernel, name, capability, chunks, sampling.CHUNK_WARPS)
            for warps, registers in sampling.SEARCH_TILES.values():
                tile = {"THREADS": 32 * warps, "VECTOR": sampling.SEARCH_VECTOR} | flags
                tile |= {"ALIGNMENT": GRAIN}
                yield variant(search_kernel, name, capability, tile, warps, registers)


def variant(
    kernel: Any,
    dtype: str,
    capability: int,
    constants: dict[str, Any],
    num_warps: int,
    max_registers: int = 0,
) -> Variant:
    types = TYPES | ({} if dtype == "-" else {"logits_ptr": f"*{dtype}"})
    unaligned = [
        name
        for name in kernel.arg_names
        if name not in ALIGNED and not types.get(name, "i32").startswith("*")
    ]
    source = make_source(kernel, types, constants, unaligned)
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    options |= {"launch_pdl": constants.get("OVERLAP", False)}
    if max_registers:
        options["maxnreg"] = max_registers
    name = kernel.fn.__name__.removesuffix("_kernel")
    detail = f"warps {num_warps}"
    return Variant(name, dtype, 0, capability, source, options, detail)
