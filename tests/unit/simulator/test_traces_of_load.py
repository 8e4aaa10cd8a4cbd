"""What arrives: files that are read, shapes that are like the traces they stand for, and copies.

Guarded against: a bad file that is read all the same, a shape whose bursts or lengths are another
trace's, and a day without a night.
"""

from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev, pvariance

import pytest

from services.simulator.traces.recorded import Trace, read_trace
from services.simulator.traces.shapes import SHAPES
from services.simulator.traces.superposition import Day, superposed
from shared.errors import SettingsError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
LENGTH_S = 60_000


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def test_azures_columns_are_read(tmp_path: Path) -> None:
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,3180,8\n"
    arrivals = read_trace(written(tmp_path, HEADER + rows)).arrivals
    assert [(a.num_prompt_tokens, a.num_output_tokens) for a in arrivals] == [(4808, 10), (3180, 8)]
    assert [a.at_s for a in arrivals] == pytest.approx([0, 1.5])


def test_mooncakes_lines_are_read_and_equal_moments_are_spread(tmp_path: Path) -> None:
    line = '{"timestamp": %d, "input_length": 7, "output_length": 3, "hash_ids": [1]}\n'
    trace = read_trace(written(tmp_path, line % 3000 * 20 + line % 6000 * 20))
    moments = [arrival.at_s for arrival in trace.arrivals]
    assert len(set(moments)) == 40
    assert 4 < max(moments) < 6
    assert trace.length_s > max(moments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: has no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n", "line 1: has no column GeneratedTokens"),
        (HEADER + "2023-11-16 18:17:03,7,1\nyesterday,7,1\n", "line 3: TIMESTAMP is 'yesterday'"),
        (HEADER + "2023-11-16 18:17:03,-7,1\n", "line 2: ContextTokens is '-7'"),
        (HEADER + "2023-11-16 18:17:03,7\n", "line 2: has 2 fields"),
        (HEADER + "2023-11-16 18:17:03,7,1\n", "has fewer than two requests"),
        (HEADER + "2023-11-16 18:17:03,7,1\n" * 2, "all requests come at the same moment"),
        ("{]\n", "line 1: not JSON"),
        ('{"timestamp": 1}\n', "line 1: input_length is None"),
        ('{"timestamp": "x"}\n', "line 1: timestamp is 'x'"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 1.5}\n', "output_length is 1.5"),
        ('{"timestamp": true, "input_length": 2, "output_length": 1}\n', "timestamp is True"),
    ],
)
def test_a_bad_file_is_refused_with_its_line_and_field(
    tmp_path: Path, text: str, said: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError, match=said) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"--trace {path}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--trace .*nothing"):
        read_trace(tmp_path / "nothing")


REAL = {
    "azure-code": {
        "rate": 2.567,
        "prompt": 2048,
        "answer": 27.9,
        "gap cv": 13.2,
        "excess": {1: 4.75, 10: 2.76, 60: 1.08, 180: 0.43},
        "quantiles": {0.1: 147, 0.5: 1469, 0.9: 5186},
    },
    "mooncake": {
        "rate": 3.401,
        "prompt": 12_035,
        "answer": 342.6,
        "gap cv": 1.0,
        "excess": {10: 0.012, 60: 0.009},
        "quantiles": {0.1: 964, 0.5: 6909, 0.9: 27_367},
    },
}
"""of the published files. Excess: variance of the counts of windows of so many seconds beyond that
of a Poisson process, in squares of the mean; mooncake's moments are three seconds coarse, so its
gaps and short windows are not known"""


def excess(moments: list[float], window_s: int) -> float:
    counts = [0] * (LENGTH_S // window_s)
    for at_s in moments:
        if at_s < len(counts) * window_s:
            counts[int(at_s // window_s)] += 1
    mean = fmean(counts)
    return (pvariance(counts) - mean) / mean**2


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_like_its_trace(name: str) -> None:
    real, trace = REAL[name], SHAPES[name].trace(LENGTH_S, seed=1)
    moments = [arrival.at_s for arrival in trace.arrivals]
    assert len(moments) / LENGTH_S == pytest.approx(real["rate"], rel=0.06)
    prompts = sorted(arrival.num_prompt_tokens for arrival in trace.arrivals)
    assert fmean(prompts) == pytest.approx(real["prompt"], rel=0.03)
    answers = [arrival.num_output_tokens for arrival in trace.arrivals]
    assert fmean(answers) == pytest.approx(real["answer"], rel=0.06)
    for share, tokens in real["quantiles"].items():  # type: ignore[attr-defined]
        assert prompts[int(share * len(prompts))] == pytest.approx(tokens, rel=0.06)
    gaps = [after - before for before, after in pairwise(moments)]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(real["gap cv"], rel=0.15)
    for window_s, value in real["excess"].items():  # type: ignore[attr-defined]
        assert excess(moments, window_s) == pytest.approx(value, rel=0.25, abs=0.008)


def test_another_shape_would_be_told_apart() -> None:
    """The detector of the test above: mooncake's moments have none of azure-code's bursts."""
    calm = [arrival.at_s for arrival in SHAPES["mooncake"].trace(LENGTH_S, seed=1).arrivals]
    assert excess(calm, 10) < 0.1 < REAL["azure-code"]["excess"][10]  # type: ignore[index]


def test_copies_add_up_to_the_day() -> None:
    """Steady arrivals: all copies at the height of the day, 0.3 of them at its depth."""
    shape = SHAPES["mooncake"].trace(3600, seed=3)
    trace, day = Trace(shape.arrivals, 3600.0), Day(swing=0.7, period_s=7200.0)
    arrivals = superposed(trace, 4, 7200.0, day, seed=1)
    assert [a.at_s for a in arrivals] == sorted(a.at_s for a in arrivals)
    rate = 4 * len(shape.arrivals) / 3600
    high = sum(1500 <= arrival.at_s < 2100 for arrival in arrivals) / 600
    low = sum(5100 <= arrival.at_s < 5700 for arrival in arrivals) / 600
    assert high == pytest.approx(rate, rel=0.06)
    assert low == pytest.approx(0.3 * rate, rel=0.1)


def test_another_seed_shifts_the_copies() -> None:
    trace = SHAPES["azure-code"].trace(600, seed=1)
    first, again, other = (superposed(trace, 3, 300.0, Day(), seed) for seed in (1, 1, 2))
    assert first == again != other
