"""FlashAttention-3's rates on one NVIDIA H200 (the build in vLLM 0.26.0), 32 query and 8 KV heads
of size 128, bfloat16. Those of decode stand in kernels/attention/bench_decode.py, which prints
them.
"""

from collections.abc import Mapping

PREFILL_TFLOPS: Mapping[tuple[str, int | None], float] = {
    ("causal 1k", None): 260.0,
    ("causal 8k", None): 631.0,
    ("causal 32k", None): 656.0,
    ("chunk 2k over 8k", 16): 588.0,
    ("chunk 2k over 8k", 64): 570.0,
    ("chunk 2k over 8k", 256): 633.0,
}
"""(shape as kernels/attention/bench_prefill.py names it, block size where K and V were paged)"""


def prefill_rival(shape: str, block_size: int) -> float | None:
    """TFLOP/s; None where nothing is known."""
    return PREFILL_TFLOPS.get((shape, None), PREFILL_TFLOPS.get((shape, block_size)))
