"""What an engine counts, as the metrics name it."""

import pytest

from shared.engine.counters import OVERS, EngineCounters


@pytest.mark.parametrize(
    ("times_predicted", "counted"),
    [(0.9, ["0"]), (1.1, ["0"]), (1.3, ["0", "1.1", "1.25"]), (7.0, list(OVERS))],
)
def test_a_decode_step_counts_for_all_that_it_is_over(
    times_predicted: float, counted: list[str]
) -> None:
    counters = EngineCounters()
    counters.count_decode_step(times_predicted)
    totals = counters.totals()
    assert [over for over in OVERS if totals[f"decode_steps:{over}"]] == counted


def test_all_totals_are_there_from_the_start() -> None:
    assert set(EngineCounters().totals().values()) == {0}
