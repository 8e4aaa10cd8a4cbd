"""The lines that benchmarks of kernels print, as a table and as figures."""

from typing import Any

import pytest

from services.cli.bench.engine.figures.attention import decode_figures, prefill_figures
from services.cli.bench.kernels.table import comparisons, render
from shared.engine.running.ceilings import Ceilings

H200 = Ceilings(4.28e12, 701e12)


def decode_line(
    batch: int, context: list[int], us: float, rival_us: float | None
) -> dict[str, Any]:
    return {
        "kernel": "paged_decode",
        "gpu": "NVIDIA H200",
        "versions": "torch 2.11",
        "batch": batch,
        "context": context,
        "block_size": 16,
        "us": us,
        "gb_per_s": 4000 if len(context) == 1 else 3600,
        "us_without_overlap": us + 2,
        "flash_attention_3_us": rival_us,
        "ratio": None,
    }


DECODE = [
    decode_line(1, [1024], 6.0, 11.4),
    decode_line(256, [1024], 259.5, 289.2),
    decode_line(8, [4096, 32768], 69.1, None),
    decode_line(8, [7680], 66.9, None),
]
PREFILL: list[dict[str, Any]] = [
    {"gpu": "NVIDIA H200", "torch": "2.11.0"},
    {"shape": "causal 8k", "torch": "cuDNN", "rested": 611.0, "sustained": 541.0},
    {"shape": "causal 8k", "block_size": 16, "rested": 637.0, "sustained": 565.0},
    {"shape": "chunk 2k over 8k", "block_size": 256, "rested": 600.0, "sustained": 550.0},
    {"shape": "causal 8k head 64", "block_size": 16, "rested": 391.0, "sustained": 380.0},
]


def test_times_beside_their_alternatives() -> None:
    rows = list(comparisons("decode", DECODE))
    assert [row.shape for row in rows][:2] == [
        "batch 1, context 1024, block size 16",
        "batch 256, context 1024, block size 16",
    ]
    assert rows[0].others == {"flash attention 3": 11.4}
    assert rows[0].ahead == pytest.approx(1.9)
    assert rows[2].ahead is None


def test_rates_beside_those_of_the_same_shape() -> None:
    rows = list(comparisons("prefill", PREFILL))
    assert [row.others for row in rows] == [
        {"cuDNN": 611.0, "flash attention 3": 631.0},
        {"flash attention 3": 633.0},
        {},
    ]
    assert rows[0].ahead == pytest.approx(637 / 631)


def test_any_alternative_gets_a_column() -> None:
    line = {"kernel": "linear", "rows": 32, "us": 20.0, "cublas_us": 25.0, "gb_per_s": 3900}
    table = render([*comparisons("linear", [line]), *comparisons("decode", DECODE)])
    head, first, *_ = table.splitlines()
    assert head.endswith("ahead")
    assert "cublas" in head
    assert "flash attention 3" in head
    assert first.split() == ["linear", "rows", "32", "20", "us", "25", "1.25x"]


def test_a_kernel_that_steps_aside_has_no_time_of_its_own() -> None:
    line = {
        "kernel": "skinny_linear",
        "projection": "down",
        "rows": 128,
        "floor_us": 27.0,
        "gb_per_s": None,
        "vendor_us": 33.0,
        "vendor_share": 0.82,
        "ours_us": None,
        "ours_share": None,
    }
    faster = {**line, "rows": 1, "ours_us": 30.0, "ours_share": 0.9, "ours_without_overlap_us": 31}
    aside, beside = comparisons("linear", [line, faster])
    assert (aside.value, aside.ahead, aside.floor) == (None, None, 27.0)
    assert beside.others == {"vendor": 33.0}
    assert beside.ahead == pytest.approx(1.1)
    assert beside.shape == "projection down, rows 1"
    rows = [text.split()[5:] for text in render([aside, beside]).splitlines()[1:]]
    assert rows == [["aside", "us", "27", "33"], ["30", "us", "27", "33", "1.10x"]]


def test_decode_attention_as_figures() -> None:
    figures = list(decode_figures("llama-3.1-8b", DECODE, H200))
    small, wide, skewed, equal = figures
    assert [one.verdict for one in figures] == ["reach 1 of 1", "must", "must", ""]
    assert small.cell == "decode-1x1024-b16"
    assert small.floor == pytest.approx(1024 * 4096 / 4.28e6, rel=1e-6)
    assert wide.ahead == pytest.approx(289.2 / 259.5)
    assert skewed.cell == "decode-8x4096+32768-b16"
    assert skewed.known is not None
    assert skewed.known.rival == pytest.approx(69.1 * 0.9)
    assert equal.known is None


def test_a_slow_skewed_batch_misses() -> None:
    slow = [{**DECODE[2], "gb_per_s": 3300}, DECODE[3]]
    assert next(decode_figures("m", slow, H200)).verdict == "missed"


def test_prefill_attention_as_figures() -> None:
    figures = list(prefill_figures("llama-3.1-8b", PREFILL, H200))
    assert [one.verdict for one in figures] == ["must", "missed", ""]
    assert figures[0].cell == "prefill-causal-8k-b16"
    elsewhere = [{"gpu": "NVIDIA H100", "torch": "2.11.0"}, *PREFILL[1:]]
    assert [one.known for one in prefill_figures("m", elsewhere, H200)] == [None] * 3


def test_figures_of_another_gpu_have_no_rival() -> None:
    other = [{**DECODE[0], "gpu": "NVIDIA A100"}]
    assert next(decode_figures("m", other, H200)).known is None
