"""The histogram of what comes once per token says what the library's own would say."""

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from shared.telemetry.histogram import PlainHistogram
from shared.telemetry.metrics import GAP_BUCKETS_S

VALUES = (0.0, 0.001, 0.0010001, 0.0099, 0.3, 1, 2.5, 2.6, 100.0)


def test_it_is_exported_as_the_library_does() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    library = Histogram("baton_gap_seconds", "a gap", buckets=GAP_BUCKETS_S, registry=theirs)
    plain = PlainHistogram("baton_gap_seconds", "a gap", GAP_BUCKETS_S)
    ours.register(plain)
    assert generate_latest(ours) == generate_latest(theirs)
    for value in VALUES:
        library.observe(value)
        library.observe(value)
        plain.observe(value, 2)
    assert generate_latest(ours) == generate_latest(theirs)
