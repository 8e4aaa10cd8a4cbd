"""paged_decode compiles ahead of time for sm_80, sm_90 and sm_100, GPU or not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NUM_VARIANTS = 3 * (4 + 2) + 1
"""generations x (types and head sizes, plan and merge), and one with overlap"""
MAX_SHARED_BYTES = 163 * 1024
"""of one program on sm_80, the smallest of them"""


@pytest.mark.timeout(180)
def test_all_variants_compile(tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603  (our own file)
        [sys.executable, str(Path(__file__).with_name("compile_decode.py"))],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    variants = [json.loads(line) for line in done.stdout.splitlines()]
    sys.stdout.write(f"{len(variants)} kernel variants compiled\n")
    assert len({variant["name"] for variant in variants}) == NUM_VARIANTS
    assert all(variant["cubin_bytes"] > 0 for variant in variants)
    assert max(variant["shared_bytes"] for variant in variants) <= MAX_SHARED_BYTES
