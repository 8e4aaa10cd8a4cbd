"""The autoscaler's metrics, made when they are asked for."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.autoscaler.autoscaler import Told


class AutoscalerCollector(Collector):
    """Of the last decision, and totals since the start."""

    def __init__(
        self, told: Callable[[], Told | None], counters: Callable[[], Mapping[str, int]]
    ) -> None:
        self._told = told
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        told = self._told()
        if told is not None:
            yield from _of_decision(told)
        yield from _totals(self._counters())


def _of_decision(told: Told) -> Iterable[Metric]:
    wanted = GaugeMetricFamily(
        "baton_autoscaler_wanted", "workers that are wanted", labels=["role"]
    )
    ordered = GaugeMetricFamily("baton_autoscaler_replicas", "workers ordered", labels=["role"])
    draining = GaugeMetricFamily("baton_autoscaler_draining", "workers that drain", labels=["role"])
    for role, of_role in told.decision.roles.items():
        wanted.add_metric([role], told.wanted[role])
        ordered.add_metric([role], told.view.roles[role].replicas)
        draining.add_metric([role], len(of_role.drain))
    yield from (wanted, ordered, draining)
    yield GaugeMetricFamily(
        "baton_autoscaler_holds",
        "1 while nothing is done although something might be needed",
        value=float(bool(told.decision.holds)),
    )
    yield GaugeMetricFamily(
        "baton_autoscaler_acts", "1 while this process may order", value=float(told.acts)
    )


def _totals(counters: Mapping[str, int]) -> Iterable[Metric]:
    orders = CounterMetricFamily(
        "baton_autoscaler_orders", "replicas ordered", labels=["role", "direction"]
    )
    for name, count in counters.items():
        kind, *labels = name.split(":")
        if kind == "orders":
            orders.add_metric(labels, count)
    yield orders
    for kind, meaning in (
        ("decisions", "decisions made"),
        ("drains", "workers asked to drain"),
        ("refused_orders", "orders that the cluster did not take"),
        ("loop_failures", "failed turns of its loops"),
    ):
        yield CounterMetricFamily(f"baton_autoscaler_{kind}", meaning, value=counters.get(kind, 0))
