"""The knee of curves whose knee is known, and what a sweep says of a point.

Guarded against: a knee that moves with the end of the sweep, one of a curve that has none, shares
of something else than the roofline, and a picture without its axes.
"""

from dataclasses import replace
from math import sqrt
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.engine.figures.floors import Floors
from services.cli.bench.sweep.knee import Knee, find_knee
from services.cli.bench.sweep.point import Point
from services.cli.bench.sweep.report import render_svg, render_text
from shared.engine.running.ceilings import Ceilings
from shared.model.model_size import ModelSize

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SIZE = ModelSize(
    layer_params=900,
    head_params=90,
    norm_params=10,
    windows=(0,),
    kv_layer_bytes=4,
    attention_width=8,
    param_bytes=2,
)
CEILINGS = Ceilings(copy_bytes_per_s=1e4, matmul_flops_per_s=1e5)
FLOORS = Floors(SIZE, CEILINGS)


def test_a_rate_that_grows_up_to_a_batch_and_then_stays_has_its_knee_there() -> None:
    for at in BATCHES[:-1]:
        rates = [(batch, 100.0 * min(batch, at)) for batch in BATCHES]
        assert find_knee(rates) == Knee(at, reached=True)


def test_a_straight_line_has_none() -> None:
    assert find_knee([(batch, 7.0 * batch) for batch in BATCHES]) == Knee(128, reached=False)
    assert find_knee([(4, 100.0)]) == Knee(4, reached=False)


@given(st.floats(0.5, 50), st.floats(0.01, 1))
def test_of_steps_that_grow_by_each_row_it_is_where_the_slope_has_halved(
    step_ms: float, row_ms: float
) -> None:
    """Rate b / (s + r b) has the slope s / (s + r b)^2: half of that of a rate through the first
    batch at s + r b = sqrt(2 s (s + r)). Batches one apart find it but for one."""
    true = (sqrt(2 * step_ms * (step_ms + row_ms)) - step_ms) / row_ms
    rates = [(batch, batch / (step_ms + row_ms * batch)) for batch in range(1, 2400)]
    assert find_knee(rates).batch == pytest.approx(max(true, 1), abs=1.01)


def test_the_end_of_the_sweep_does_not_move_it() -> None:
    """The largest distance to the chord lies at 16 of the whole table and at 8 of its half."""
    table = [(1, 120.0), (8, 640.0), (16, 960.0), (32, 1120.0), (64, 1200.0)]
    assert {find_knee(table[:end]).batch for end in (3, 4, 5)} == {8}
    assert not find_knee(table[:2]).reached


def test_a_point_below_its_neighbours_does_not_make_a_knee() -> None:
    rates = [(batch, 100.0 * min(batch, 32)) for batch in BATCHES]
    disturbed = [(batch, rate * (0.6 if batch == 8 else 1)) for batch, rate in rates]
    assert find_knee(disturbed) == find_knee(rates) == Knee(32, reached=True)


def test_a_point_that_only_reads_has_the_share_of_a_copy() -> None:
    """2000 bytes of weights and 10 positions of 4 bytes take 0.204 s; it took 0.408."""
    point = Point.of(1, 0.408, 10, FLOORS)
    assert point.rate == pytest.approx(1 / 0.408)
    assert point.utilisation == pytest.approx(0.5)
    assert point.read_share == pytest.approx(0.5)
    assert point.product_share == pytest.approx(2 * 990 / 0.408 / 1e5)


def test_a_point_that_multiplies_has_the_share_of_products() -> None:
    """100 rows of 990 parameters are 198,000 operations, 1.98 s, which is longer than reading."""
    point = Point.of(100, 3.96, 0, FLOORS)
    assert point.utilisation == pytest.approx(0.5)
    assert point.product_share == pytest.approx(0.5)


def test_the_table_marks_the_knee_and_says_what_shares_are_of() -> None:
    points = [Point.of(batch, 0.5 if batch < 4 else 1.0 * batch, 10, FLOORS) for batch in (1, 2, 4)]
    text = render_text(points, Knee(2, reached=True), CEILINGS)
    head, *rows = text.splitlines()[:4]
    assert head.split()[:4] == ["batch", "tok/s", "ms/token", "utilisation"]
    assert [row.endswith("<- knee") for row in rows] == [False, True, False]
    assert rows[1].split()[:5] == ["2", "4.0", "500.000", "41.6", "%"]
    assert "a copy 0.0 GB/s" in text
    assert "disturbed" not in text
    noisy = [replace(points[0], disturbed=True), *points[1:]]
    marked = render_text(noisy, Knee(1, reached=True), CEILINGS).splitlines()
    assert marked[1].endswith("<- knee, disturbed")
    assert "measure again on a quiet machine" in marked[4]
    assert "no knee up to a batch of 4" in render_text(points, Knee(4, reached=False), CEILINGS)


def test_the_picture_has_its_axes_and_the_knee() -> None:
    points = [Point.of(batch, 0.5, 10, FLOORS) for batch in (1, 2, 4)]
    drawn = render_svg(points, Knee(2, reached=True), "m")
    ElementTree.fromstring(drawn)  # noqa: S314
    for text in ("tokens/s", ">ms<", ">%<", "knee, 2"):
        assert text in drawn
    assert drawn.count("sequences in the batch") == 3
    assert "knee" not in render_svg(points, Knee(4, reached=False), "m")
