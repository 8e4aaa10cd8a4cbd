"""The rows and factors of an ablation, the differences it looks for, and its prompts.

Guarded against: ways that answer differently and are not told, a factor of the wrong rows, a
product of factors, and prompts that are not the same for all ways.
"""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

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


def test_the_table_has_every_row_the_factors_and_no_product() -> None:
    text = render_text(ROWS, factors(ROWS, 8))
    lines = text.splitlines()
    assert lines[1].split() == ["none", "1.0", "1000.000", "1.00x", "0"]
    assert lines[4].split() == ["both", "20.0", "1000.000", "20.00x", "128"]
    assert f"{GRAPHS}: not run, as there is no GPU" in lines
    assert [line.split()[0] for line in lines[8:12]] == ["base", "parallel", "cache", "memory"]
    assert "are not multiplied" in lines[-1]
    assert GRAPHS in render_text([*ROWS, replace(NONE, name=GRAPHS)], ()).splitlines()[6]


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


def test_the_picture_has_a_bar_for_each_row() -> None:
    drawn = render_svg(ROWS, "m")
    ElementTree.fromstring(drawn)  # noqa: S314
    for row in ROWS:
        assert drawn.count(f">{row.name} ") == 2
    assert "tok/s" in drawn and ">ms<" in drawn
