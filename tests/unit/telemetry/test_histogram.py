"""The histogram of what comes once per token says what the library's own would say."""

from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from shared.telemetry.histogram import PlainHistogram
from shared.telemetry.metrics import FINE_GAP_BOUNDS_S, GAP_BUCKETS_S

VALUES = (0.0, 0.001, 0.0010001, 0.0099, 0.3, 1, 2.5, 2.6, 100.0)


@pytest.mark.parametrize("fine", [(), FINE_GAP_BOUNDS_S])
def test_it_is_exported_as_the_library_does(fine: tuple[float, ...]) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    library = Histogram("baton_gap_seconds", "a gap", buckets=GAP_BUCKETS_S, registry=theirs)
    plain = PlainHistogram("baton_gap_seconds", "a gap", GAP_BUCKETS_S, fine)
    ours.register(plain)
    assert generate_latest(ours) == generate_latest(theirs)
    for value in VALUES:
        library.observe(value)
        library.observe(value)
        plain.observe(value, 2)
    assert generate_latest(ours) == generate_latest(theirs)
    assert sum(plain.counts()) == 2 * len(VALUES)
    for bound in GAP_BUCKETS_S:
        num_within = 2 * sum(value <= bound for value in VALUES)
        assert plain.split(bound) == (num_within, 2 * len(VALUES) - num_within)


def test_fine_bounds_are_close_enough_to_tell_a_quantile() -> None:
    bounds = FINE_GAP_BOUNDS_S
    assert bounds[0] == 0.0005
    assert bounds[-1] > 8
    assert all(above / below <= 1.081 for below, above in pairwise(bounds))
