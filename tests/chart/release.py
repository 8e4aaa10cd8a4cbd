"""The chart rendered by Helm's own engine, as objects."""

import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import helm_python
import yaml

from tests.rules.sources import ROOT

CHART = ROOT / "helm"
NAME = "rel"
NAMESPACE = "ns"
Object = dict[str, Any]


@dataclass(frozen=True)
class Release:
    """Everything one set of values renders to."""

    objects: tuple[Object, ...]
    notes: str

    def of_kind(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    def named(self, kind: str, name: str) -> Object:
        (found,) = (o for o in self.of_kind(kind) if o["metadata"]["name"] == name)
        return found

    def workload(self, role: str) -> Object:
        """The Deployment of a component."""
        (found,) = (o for o in self.of_kind("Deployment") if component(o) == role)
        return found

    def pods(self) -> Iterator[tuple[str, Object]]:
        """(component, pod or pod template) of everything that runs."""
        for item in self.objects:
            if item["kind"] in ("Deployment", "Job"):
                yield component(item), item["spec"]["template"]
            elif item["kind"] == "Pod":
                yield component(item), item

    def containers(self) -> Iterator[tuple[str, Object]]:
        for role, pod in self.pods():
            for container in pod["spec"]["containers"]:
                yield role, container


def secrets_script() -> dict[str, Any]:
    """The names that the hook's script defines: it is no module of a package."""
    return runpy.run_path(str(CHART / "files" / "secrets.py"))


def component(item: Object) -> str:
    name: str = item["metadata"]["labels"]["app.kubernetes.io/component"]
    return name


def render(values: Mapping[str, Any], name: str = NAME) -> Release:
    """HelmRenderError or HelmValuesError where Helm refuses."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(dict(values))
        files = chart.render(dict(values), name=name, namespace=NAMESPACE)
    objects: list[Object] = []
    for path, text in sorted(files.items()):
        if path.endswith(".yaml"):
            objects += [item for item in yaml.safe_load_all(text) if item]
    return Release(tuple(objects), files["baton/templates/NOTES.txt"])
