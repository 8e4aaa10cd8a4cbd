"""Every kernel compiles ahead of time for sm_80, sm_90 and sm_100, GPU or not."""

from pathlib import Path

import pytest

from tests.unit.kernels.compiling import compiled

NUM_VARIANTS = 27
"""store_kv: 3 types x 3 shapes x 3 generations"""
MAX_SHARED_BYTES = 99 * 1024
"""what one program may use on every one of them"""


@pytest.mark.timeout(180)
def test_all_variants_compile(tmp_path: Path) -> None:
    variants = compiled("compile_all.py", tmp_path)
    assert len({variant["name"] for variant in variants}) == NUM_VARIANTS
    assert all(variant["shared_bytes"] <= MAX_SHARED_BYTES for variant in variants)
