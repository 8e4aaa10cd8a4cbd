"""paged_prefill compiles ahead of time, GPU or not, within the shared memory of each generation.

compile_prefill.py alone compiles all 55 variants; here stand one or two of every type, head size,
generation and form, which takes a sixth of the time.
"""

from pathlib import Path

import pytest

from tests.unit.kernels.compiling import compiled

HALVES = (
    (
        "paged_prefill bf16 64 sm_80",
        "paged_prefill bf16 128 sm_90",
        "paged_prefill fp32 96 sm_100",
        "paged_prefill_hopper bf16 128 sm_90",
    ),
    (
        "paged_prefill fp16 80 sm_100",
        "paged_prefill fp32 256 sm_80",
        "paged_prefill_hopper fp16 80 sm_90",
        "paged_prefill_hopper bf16 256 sm_90",
    ),
)
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""what one program may use"""


@pytest.mark.timeout(180)
def test_variants_compile(tmp_path: Path) -> None:
    variants = compiled("compile_prefill.py", tmp_path, HALVES)
    assert {variant["name"] for variant in variants} == {name for half in HALVES for name in half}
    for variant in variants:
        assert variant["shared_bytes"] <= SHARED_BYTES[variant["capability"]], variant
