"""paged_decode compiles ahead of time for sm_80, sm_90 and sm_100, GPU or not."""

from pathlib import Path

import pytest

from tests.unit.kernels.compiling import compiled

NUM_VARIANTS = 3 * (4 + 2) + 1
"""generations x (types and head sizes, plan and merge), and one with overlap"""
MAX_SHARED_BYTES = 163 * 1024
"""of one program on sm_80, the smallest of them"""


@pytest.mark.timeout(180)
def test_all_variants_compile(tmp_path: Path) -> None:
    variants = compiled("compile_decode.py", tmp_path)
    assert len({variant["name"] for variant in variants}) == NUM_VARIANTS
    assert max(variant["shared_bytes"] for variant in variants) <= MAX_SHARED_BYTES
