"""A worker's first start on a machine compiles ahead all that it launches, and the next nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.rules.sources import ROOT
from tests.support.measured import Measured
from tests.support.models.tiny_model import TINY, TINY_GPT2

TIMEOUT_S = 240
SUMMARY = "kernels compiled in"
CASES: dict[str, tuple[str | Mapping[str, Any], str, str]] = {
    "llama-3.1-8b": ("llama-3.1-8b", "bfloat16", "decode"),
    "qwen3-prefill": ("qwen3-0.6b", "float16", "prefill"),
    "exact": (TINY, "float32", "decode"),
    "gpt2": (TINY_GPT2, "float16", "decode"),
    "windows": (
        {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 40},
        "bfloat16",
        "decode",
    ),
}


def start(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """What cold_start.py prints, and the log."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(folder / "cache")}
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "tests.gpu.cold_start", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    line: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return line, ended.stderr


def model_in(folder: Path, model: str | Mapping[str, Any]) -> str:
    if isinstance(model, str):
        return model
    (folder / "config.json").write_text(json.dumps(dict(model)))
    return str(folder)


@pytest.mark.parametrize("name", CASES)
def test_a_start_compiles_nothing_itself(tmp_path: Path, measured: Measured, name: str) -> None:
    model, dtype, role = CASES[name]
    arguments = (model_in(tmp_path, model), dtype, role, "1")
    cold, log = start(tmp_path, *arguments)
    assert SUMMARY in log, log
    (summary,) = (line for line in log.splitlines() if SUMMARY in line)
    assert not cold["late"], cold
    assert not cold["new"], cold
    warm, log = start(tmp_path, *arguments)
    assert SUMMARY not in log
    assert not warm["late"], warm
    seconds = f"cold start {cold['ready_s']:.1f} s, warm {warm['ready_s']:.1f} s"
    measured.note(f"{name}: {seconds}; {summary}")


@pytest.mark.gpu(2)
def test_ranks_compile_nothing_themselves(tmp_path: Path, measured: Measured) -> None:
    cold, log = start(tmp_path, "llama-3.1-8b", "bfloat16", "decode", "2")
    assert not cold["late"], (cold, log)
    warm, _ = start(tmp_path, "llama-3.1-8b", "bfloat16", "decode", "2")
    measured.note(f"2 ranks: cold start {cold['ready_s']:.1f} s, warm {warm['ready_s']:.1f} s")
