"""What the chart renders is what Kubernetes takes, and what its author last looked at."""

import json
import tomllib
from functools import cache

import kubernetes_validate.utils
import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema import ValidationError as ForeignError

from tests.chart.generate import GOLDEN, GOLDEN_SETS, golden_text
from tests.chart.release import CHART, Object, Release, render
from tests.chart.value_sets import VALUE_SETS
from tests.rules.sources import ROOT

VERSIONS = ("1.29", "1.33", "1.37")
CUSTOM_KINDS = json.loads((ROOT / "tests/chart/custom_kinds.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def releases() -> dict[str, Release]:
    return {name: render(values) for name, values in VALUE_SETS.items()}


def validate(item: Object, version: str) -> None:
    """Strictly: an unknown field is an error too."""
    schema = CUSTOM_KINDS.get(f"{item['apiVersion']}/{item['kind']}")
    if schema is not None:
        Draft202012Validator(schema).validate(item)
    else:
        kubernetes_validate.validate(item, version, strict=True)


def test_kubernetes_takes_every_object(
    releases: dict[str, Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package reads its definitions from disk for every object.
    read = cache(kubernetes_validate.utils.schema_contents)
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", read)
    seen: set[str] = set()
    for release in releases.values():
        for item in release.objects:
            text = json.dumps(item, sort_keys=True)
            if text not in seen:
                seen.add(text)
                for version in VERSIONS:
                    validate(item, version)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0, "arg"), ["x"]),
        ("Deployment", ("spec", "replicas"), "1"),
        ("NetworkPolicy", ("spec", "ingres"), []),
        ("ScaledObject", ("spec", "triggers", 0, "metadata", "threshold"), 1),
        ("ScaledObject", ("spec", "minReplicas"), 1),
        ("ServiceMonitor", ("spec", "endpoints", 0, "port"), 80),
        ("PodMonitor", ("spec", "endpoints"), []),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "alert"), "both"),
    ],
)
def test_a_wrong_object_is_found(
    releases: dict[str, Release], kind: str, path: tuple[str | int, ...], value: object
) -> None:
    item = json.loads(json.dumps(releases["everything"].of_kind(kind)[0]))
    validate(item, VERSIONS[0])
    node = item
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises((kubernetes_validate.ValidationError, ForeignError)):
        validate(item, VERSIONS[0])


def test_checkpoints_come_from_an_image() -> None:
    """Of every pod that reads one, where `settings.model` looks."""
    release = render(
        {
            "settings": {"model": "/models/llama"},
            "modelVolume": {"image": {"reference": "models/llama:1"}},
        }
    )
    for role in ("gateway", "prefill", "decode"):
        workload = release.workload(role)
        validate(workload, VERSIONS[-1])
        pod = workload["spec"]["template"]["spec"]
        (volume,) = (each for each in pod["volumes"] if each["name"] == "models")
        assert volume["image"] == {"reference": "models/llama:1", "pullPolicy": "IfNotPresent"}
        mounts = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "models"]
        assert mounts == [{"name": "models", "mountPath": "/models", "readOnly": True}]


def test_no_two_objects_share_a_name(releases: dict[str, Release]) -> None:
    for release in releases.values():
        names = [(o["apiVersion"], o["kind"], o["metadata"]["name"]) for o in release.objects]
        assert len(set(names)) == len(names)
        assert all(len(name) <= 63 for _, _, name in names)


@pytest.mark.parametrize("name", VALUE_SETS)
def test_rendering_twice_gives_the_same(releases: dict[str, Release], name: str) -> None:
    """A tool that renders without a cluster finds nothing to change, and no secret is made here."""
    assert render(VALUE_SETS[name]) == releases[name]


@pytest.mark.parametrize("name", GOLDEN_SETS)
def test_golden(releases: dict[str, Release], name: str) -> None:
    """A change of the chart shows here: look at it, then `python -m tests.chart.generate`."""
    expected = list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")))
    assert list(yaml.safe_load_all(golden_text(releases[name]))) == expected


def test_a_long_release_name_still_fits() -> None:
    names = [o["metadata"]["name"] for o in render({}, name="r" * 53).objects]
    assert max(map(len, names)) <= 63


def test_the_chart_is_of_this_baton() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    assert (chart["appVersion"], chart["version"]) == (version, version)
    assert chart["apiVersion"] == "v2"


def test_notes_say_what_was_installed(releases: dict[str, Release]) -> None:
    assert "rollout status deployment/rel-baton-gateway" in releases["default"].notes
    assert "https://llm.example/v1" in releases["everything"].notes
    assert "IPC_LOCK" in releases["pd-rdma"].notes
    assert "delete secret rel-baton-cell" in releases["default"].notes
    assert "delete secret" not in releases["existing-secret"].notes
