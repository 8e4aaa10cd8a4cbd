"""The rows and factors of an ablation, the differences it looks for, and its prompts.

Guarded against: ways that answer differently and are not told, a factor of the wrong rows, a
product of factors, a column that lacks or that a price nobody gave fills, and prompts that are not
the same for all ways.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from services.cli.bench.ablation.figures import Figures, quality
from services.cli.bench.ablation.gaps import Gaps
from services.cli.bench.ablation.load import CPU
from services.cli.bench.ablation.measurement import GRAPHS, stages
from services.cli.bench.ablation.report import render_svg, render_text
from services.cli.bench.ablation.row import Row, differing, factors
from shared.settings.load import load_settings

TOKENS = ((1, 2, 3), (4, 5))
NONE = Row("none", TOKENS, 5.0, 1.0, 0, 0.0, None)
ROWS = [
    NONE,
    replace(NONE, name="batch", elapsed_s=4.0),
    replace(NONE, name="KV", elapsed_s=1.0, kept_bytes=64),
    replace(NONE, name="both", elapsed_s=0.25, kept_bytes=128, filled_share=0.9),
    replace(NONE, name="+ prefix cache", elapsed_s=0.2, kept_bytes=96, hit_share=0.6),
]


def test_factors_are_read_off_their_rows() -> None:
    base, parallel, cache, memory = factors(ROWS, 8)
    assert (base.name, base.value, base.unit) == ("base", 1.0, "tok/s")
    assert (parallel.name, parallel.value) == ("parallel", 4 / 8)
    assert (cache.name, cache.value) == ("cache", 0.6)
    assert (memory.name, memory.value) == ("memory", 0.9)


def figures_of(rows: Sequence[Row], price: float = 0.0) -> dict[str, Figures]:
    return {row.name: Figures.of(row, rows[0], price) for row in rows}


def test_the_figures_of_a_row_by_hand() -> None:
    """Five tokens in 0.25 s are 20 a second, 72,000 an hour: a million take 13.8889 hours, which
    cost 27.7778 USD at 2 USD each."""
    figures = Figures.of(ROWS[3], NONE, 2.0)
    assert figures == Figures(20.0, 1000.0, 128, 1.0, 27.777778)
    assert Figures.of(ROWS[3], NONE, 0.0).usd_per_million_tokens is None


@pytest.mark.parametrize(
    ("token_ids", "share"),
    [
        (TOKENS, 1.0),
        (((1, 2, 3), (4, 6)), 0.8),
        (((1, 9, 3), (5, 4)), 0.4),
        (((1, 2, 3), (4,)), 0.8),
        (((1, 2, 3), (4, 5, 6)), 0.833333),
        (((1, 2, 3),), 0.6),
        ((*TOKENS, (7, 8, 9, 10, 11)), 0.5),
    ],
)
def test_quality_is_the_share_of_tokens_that_are_the_reference_s(
    token_ids: tuple[tuple[int, ...], ...], share: float
) -> None:
    """Rounded down; a token that only one of them has is not equal."""
    assert quality(replace(NONE, token_ids=token_ids), NONE) == share


def test_the_table_has_five_columns_every_row_the_factors_and_no_product() -> None:
    text = render_text(figures_of(ROWS, 2.0), factors(ROWS, 8))
    lines = text.splitlines()
    heads = ["throughput, tok/s", "latency, ms/token", "memory, bytes of KV", "quality"]
    assert re.split(r" {2,}", lines[0].strip()) == [*heads, "cost, USD/M tokens"]
    assert lines[1].split() == ["none", "1.0", "1,000.000", "0", "1.000", "555.6"]
    assert lines[4].split() == ["both", "20.0", "1,000.000", "128", "1.000", "27.78"]
    assert f"{GRAPHS}: not run, as there is no GPU" in lines
    assert [line.split()[0] for line in lines[8:12]] == ["base", "parallel", "cache", "memory"]
    assert "are not multiplied" in lines[-1]
    with_graphs = figures_of([*ROWS, replace(NONE, name=GRAPHS)])
    assert GRAPHS in render_text(with_graphs, ()).splitlines()[6]


def test_without_a_price_the_cost_is_left_open_and_a_share_is_never_rounded_up() -> None:
    almost = replace(NONE, name="x", token_ids=((1,) * 9_999 + (2,),))
    one = replace(NONE, token_ids=((1,) * 10_000,))
    lines = render_text(figures_of([one, almost]), ()).splitlines()
    assert lines[2].split()[-2:] == ["0.999", "-"]


def test_the_same_tokens_are_no_difference_and_any_other_is_named() -> None:
    assert differing(ROWS) == []
    other = replace(ROWS[3], token_ids=((1, 2, 3), (4, 6)))
    shorter = replace(ROWS[4], token_ids=((1, 2), (4, 5)))
    lost = replace(ROWS[1], token_ids=TOKENS[:1])
    assert differing([NONE, other, shorter, lost]) == [
        "both: answer 1 differs from that of none at token 1",
        "+ prefix cache: answer 0 differs from that of none at token 2",
        "batch: 1 answers of 2",
    ]


def test_gaps_are_from_token_to_token_of_one_sequence() -> None:
    gaps = Gaps()
    assert gaps.mean_s == 0
    for sequence, now_s in (("a", 1), ("b", 1), ("a", 2), ("b", 4), ("a", 4)):
        gaps.note(sequence, now_s)
    assert gaps.mean_s == pytest.approx((1 + 3 + 2) / 3)


def test_all_ways_answer_the_same_prompts_and_the_warm_up_begins_otherwise() -> None:
    workload, again, warm = CPU.workload(500), CPU.workload(500), CPU.warm_up(500)
    assert workload == again
    starts = {request.token_ids[: CPU.num_shared] for request in workload.requests}
    assert len(starts) == 1
    assert len({request.token_ids for request in workload.requests}) == CPU.num_requests
    assert starts.isdisjoint({request.token_ids[: CPU.num_shared] for request in warm.requests})
    assert {request.num_output for request in warm.requests} == {2}
    assert len({request.num_output for request in workload.requests}) > 4


@pytest.mark.parametrize(("device_type", "names"), [("cpu", 5), ("cuda", 6)])
def test_each_engine_has_what_the_one_before_lacked(device_type: str, names: int) -> None:
    found = stages(load_settings({}, {}), 8, device_type)
    assert sum(len(stage.ways) for stage in found) == names
    engines = [stage.settings.engine for stage in found]
    parts = [(engine.prefix_cache, not engine.eager) for engine in engines]
    assert parts == [(False, False), (True, False), (True, True)][: len(found)]
    assert [way[0] for way in found[0].ways] == ["none", "batch", "KV", "both"]
    assert [way[2] for way in found[0].ways] == [1, 8, 1, 8]


@pytest.mark.parametrize(("price", "panels"), [(0.0, 4), (2.0, 5)])
def test_the_picture_has_a_panel_for_each_figure_and_a_bar_for_each_row(
    price: float, panels: int
) -> None:
    drawn = render_svg(figures_of(ROWS, price), "m")
    ElementTree.fromstring(drawn)  # noqa: S314
    for row in ROWS:
        assert drawn.count(f">{row.name} ") == panels
    assert ("Cost: of a million tokens" in drawn) == bool(price)
    assert "tok/s" in drawn and ">ms/token<" in drawn
