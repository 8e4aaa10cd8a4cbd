"""Every kernel compiles ahead of time for sm_80, sm_90 and sm_100, GPU or not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NUM_VARIANTS = 27
"""store_kv: 3 types x 3 shapes x 3 generations"""
MAX_SHARED_BYTES = 99 * 1024
"""what one program may use on every one of them"""


@pytest.mark.timeout(180)
def test_all_variants_compile(tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603  (our own file)
        [sys.executable, str(Path(__file__).with_name("compile_all.py"))],
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
    assert all(variant["shared_bytes"] <= MAX_SHARED_BYTES for variant in variants)
