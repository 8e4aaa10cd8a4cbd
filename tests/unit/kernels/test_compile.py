"""Every kernel compiles ahead of time for sm_80, sm_90 and sm_100, GPU or not, in each type and
head size: every two of the three meet, and with `make compile-kernels` all three. What else a
kernel knows, block sizes and tiles, varies over these.

The variants stand in compile_*.py, compile_all.py compiles them on two cores in a process of its
own. It takes a minute of two free cores. What has not changed since the last run comes out of
Triton's cache, whose keys are made of the sources.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
NUM_VARIANTS = {
    "compile_decode": 48,
    "compile_digest": 6,
    "compile_elementwise": 57,
    "compile_linear": 47,
    "compile_peer_reduce": 33,
    "compile_prefill": 25,
    "compile_sampling": 57,
}
"""of each program: fewer, and a kernel has lost some"""
TYPES = ("bf16", "fp16", "fp32")
HEAD_SIZES = (64, 80, 96, 128, 256)
EVERY = bool(os.environ.get("COMPILE_EVERY"))
SHARED_BYTES = {80: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""what one program may use, by generation; 8.0 has more than 8.6 and 8.9, which are meant here"""
WITH_HEADS = ("merge", "paged_decode", "paged_prefill", "rope_store", "store_kv")
WITHOUT_HEADS = ("rms_norm", "silu_mul")

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def variants() -> list[dict[str, Any]]:
    """What compile_all.py says of each."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(ROOT / ".pytest_cache" / "triton")}
    environment |= {"TRITON_DISABLE_LINE_INFO": "1"}  # nobody profiles these, and it takes time
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.kernels.compile_all"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.timeout(600)
def test_no_program_compiles_fewer_variants(
    variants: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    counts = Counter(variant["program"] for variant in variants)
    with capsys.disabled():
        sys.stdout.write(f"\n{len(variants)} kernel variants compiled: {dict(counts)}\n")
    assert len({variant["name"] for variant in variants}) == len(variants)
    programs = {path.stem for path in Path(__file__).parent.rglob("compile_*.py")}
    assert set(NUM_VARIANTS) == programs - {"compile_all"}
    short = {name: number for name, number in NUM_VARIANTS.items() if counts[name] < number}
    assert not short, f"expected {short}"


def test_each_two_of_type_head_size_and_generation_meet(variants: list[dict[str, Any]]) -> None:
    kinds = TYPES, tuple(map(str, HEAD_SIZES)), tuple(f"sm_{number}" for number in SHARED_BYTES)
    words = [tuple(variant["name"].split()[:4]) for variant in variants]
    for kernel in (*WITH_HEADS, *WITHOUT_HEADS):
        of_kernel = {tuple(rest) for name, *rest in words if name == kernel}
        expected = kinds if kernel in WITH_HEADS else (kinds[0], ("-",), kinds[2])
        for first, second in combinations(range(3), 2):
            met = {(each[first], each[second]) for each in of_kernel}
            assert met == set(product(expected[first], expected[second])), kernel
        if EVERY:
            assert of_kernel == set(product(*expected)), kernel


def test_all_fit_in_the_shared_memory(variants: list[dict[str, Any]]) -> None:
    for variant in variants:
        assert variant["cubin_bytes"] > 0
        assert variant["shared_bytes"] <= SHARED_BYTES[variant["capability"]], variant
