"""paged_prefill compiles ahead of time, GPU or not, within the shared memory of each generation.

compile_prefill.py alone compiles all 55 variants; here stand one or two of every type, head size,
generation and form, which takes a sixth of the time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
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
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    program = str(Path(__file__).with_name("compile_prefill.py"))
    running = [
        subprocess.Popen(  # noqa: S603  (our own file)
            [sys.executable, program, *names],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for names in HALVES
    ]
    done = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], done
    variants = [json.loads(line) for output, _ in done for line in output.splitlines()]
    assert {variant["name"] for variant in variants} == {name for half in HALVES for name in half}
    assert all(variant["cubin_bytes"] > 0 for variant in variants)
    for variant in variants:
        assert variant["shared_bytes"] <= SHARED_BYTES[variant["capability"]], variant
