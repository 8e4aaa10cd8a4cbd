"""Every kernel compiles ahead of time for sm_80, sm_90 and sm_100, GPU or not, in each type and
head size; what else a kernel knows, block sizes and tiles, varies over these. Of the slowest one
every two of the three meet.

The variants stand in compile_*.py, compile_all.py compiles them on two cores in a process of its
own. It takes a minute and a half of two free cores. What has not changed since the last run comes
out of Triton's cache, whose keys are made of the sources.
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
    "compile_decode": 105,
    "compile_digest": 6,
    "compile_elementwise": 147,
    "compile_linear": 47,
    "compile_peer_reduce": 33,
    "compile_prefill": 25,
    "compile_sampling": 57,
}
"""of each program: fewer, and a kernel has lost some"""
TYPES = ("bf16", "fp16", "fp32")
HEAD_SIZES = (64, 80, 96, 128, 256)
SHARED_BYTES = {80: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""what one program may use, by generation; 8.0 has more than 8.6 and 8.9, which are meant here"""
WITH_HEADS = ("merge", "paged_decode", "rope_store", "store_kv")
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


def test_each_type_head_size_and_generation_is_there(variants: list[dict[str, Any]]) -> None:
    names = {" ".join(variant["name"].split()[:4]) for variant in variants}
    sizes = {
        **dict.fromkeys(WITH_HEADS, map(str, HEAD_SIZES)),
        **dict.fromkeys(WITHOUT_HEADS, ("-",)),
    }
    for kernel, heads in sizes.items():
        expected = {
            f"{kernel} {dtype} {size} sm_{capability}"
            for dtype, size, capability in product(TYPES, list(heads), SHARED_BYTES)
        }
        assert expected <= names, sorted(expected - names)
    of_prefill = [name.split()[1:] for name in names if name.startswith("paged_prefill ")]
    for first, second in combinations(range(3), 2):
        kinds = (TYPES, list(map(str, HEAD_SIZES)), [f"sm_{number}" for number in SHARED_BYTES])
        met = {(words[first], words[second]) for words in of_prefill}
        assert met == set(product(kinds[first], kinds[second]))


def test_all_fit_in_the_shared_memory(variants: list[dict[str, Any]]) -> None:
    for variant in variants:
        assert variant["cubin_bytes"] > 0
        assert variant["shared_bytes"] <= SHARED_BYTES[variant["capability"]], variant
