"""How often users' objectives are kept, counted at the objectives themselves."""

from prometheus_client.parser import text_string_to_metric_families

from shared.telemetry.attainment import Kept, Objectives
from shared.telemetry.metrics import FINE_GAP_BOUNDS_S, GatewayMetrics

TTFT_S, GAP_S = 0.7, 0.0314
"""no bounds of buckets"""


def metrics() -> GatewayMetrics:
    return GatewayMetrics(list, objectives=Objectives(TTFT_S, GAP_S))


def exported(of: GatewayMetrics) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["objective"]): sample.value
        for family in text_string_to_metric_families(of.text().decode())
        for sample in family.samples
        if "objective" in sample.labels
    }


def test_a_wait_of_the_objective_itself_keeps_it_and_any_longer_one_does_not() -> None:
    ours = metrics()
    for ttft_s in (0.1, TTFT_S, TTFT_S + 1e-6, 60.0):
        ours.attainment.first_token(ttft_s)
    for gap_s in (0.0, GAP_S - 1e-6, GAP_S):
        ours.gap.observe(gap_s)
    ours.gap.observe(GAP_S + 1e-6, 2)
    assert ours.attainment.kept() == {"ttft": Kept(2, 2), "gap": Kept(3, 2)}


def test_what_is_exported_is_there_from_the_start() -> None:
    ours = metrics()
    found = exported(ours)
    assert found.pop(("baton_slo_seconds", "ttft")) == TTFT_S
    assert found.pop(("baton_slo_seconds", "gap")) == GAP_S
    names = [
        (f"baton_slo_{what}_total", of) for what in ("met", "missed") for of in ("ttft", "gap")
    ]
    assert found == dict.fromkeys(names, 0.0)
    ours.gap.observe(9.0)
    ours.attainment.first_token(9.0)
    found = exported(ours)
    assert [found[name] for name in names] == [0.0, 0.0, 1.0, 1.0]


def test_an_objective_that_is_a_bucket_of_its_own_adds_none() -> None:
    assert GatewayMetrics(list).gap.bounds == FINE_GAP_BOUNDS_S
