"""The metrics of several models that one process serves, told apart by a label."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

LABEL = "model"


def text_by_model(registries: Mapping[str, CollectorRegistry]) -> bytes:
    """The exposition of all of them. Each sample of ours has its model's name; what is said of the
    process is said once. Of one model alone nothing is labelled."""
    if len(registries) == 1:
        return generate_latest(next(iter(registries.values())))
    merged = CollectorRegistry()
    merged.register(_ByModel(registries))
    return generate_latest(merged)


class _ByModel(Collector):
    def __init__(self, registries: Mapping[str, CollectorRegistry]) -> None:
        self._registries = registries

    def describe(self) -> Iterable[Metric]:
        return ()  # or each registration would collect once

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for model, registry in self._registries.items():
            for family in registry.collect():
                is_ours = family.name.startswith("baton_")
                if not is_ours and family.name in families:
                    continue
                known = families.setdefault(family.name, family)
                if is_ours:
                    samples = [
                        sample._replace(labels={LABEL: model, **sample.labels})
                        for sample in family.samples
                    ]
                    known.samples = samples if known is family else known.samples + samples
        return families.values()
