"""Two releases of one cell: the gateway of one serves the model of the other's workers too.

The failure guarded: a gateway that cannot reach the workers of a model that it lists, or pods of a
stranger's release that reach ours.
"""

from typing import Any

import helm_python
import pytest

from tests.chart.process_rules import settings_of
from tests.chart.reachability import passes
from tests.chart.release import Release, render
from tests.chart.value_sets import Values

OTHER = "org/other"
SHARED: Values = {"cellSecret": {"existingSecret": "cell"}}


def first(releases: list[str], **more: Any) -> Release:
    values: Values = {
        **SHARED,
        "redis": {"existingSecret": "cell"},
        "gateway": {"settings": {"moreModels": f"other={OTHER}"}},
        "networkPolicy": {"releases": releases},
        **more,
    }
    return render(values, "first")


def second(releases: list[str]) -> Release:
    values: Values = {
        **SHARED,
        "redis": {"enabled": False, "existingSecret": "cell"},
        "settings": {"model": OTHER, "servedModelName": "other"},
        "networkPolicy": {"releases": releases},
    }
    return render(values, "second")


def may(source: Release, own: str, target: Release, other: str, port: int) -> bool:
    """Whether both sides let pods of these components talk."""
    mine = dict(source.pods())[own]["metadata"]["labels"]
    theirs = dict(target.pods())[other]["metadata"]["labels"]
    out, into = source.of_kind("NetworkPolicy"), target.of_kind("NetworkPolicy")
    return passes(out, "egress", mine, theirs, port) and passes(into, "ingress", theirs, mine, port)


def test_the_gateway_reaches_the_workers_of_both_and_all_reach_redis() -> None:
    a, b = first(["second"]), second(["first"])
    for role in ("prefill", "decode"):
        assert may(a, "gateway", b, role, 9000)
        assert may(b, role, a, "redis", 6379)
        assert not may(a, role, b, role, 9000), "a worker is no gateway"
        assert not may(a, "decode", b, role, 9001), "KV stays within a model"


@pytest.mark.parametrize(("named_by_a", "named_by_b"), [([], ["first"]), (["second"], [])])
def test_both_must_name_each_other(named_by_a: list[str], named_by_b: list[str]) -> None:
    a, b = first(named_by_a), second(named_by_b)
    assert not may(a, "gateway", b, "decode", 9000)
    assert may(b, "decode", a, "redis", 6379) == bool(named_by_a)


def test_a_release_that_nobody_names_reaches_nothing() -> None:
    a, b = first(["third"]), second(["third"])
    assert not may(a, "gateway", b, "prefill", 9000) and not may(b, "prefill", a, "redis", 6379)


def test_the_gateway_is_told_of_the_other_model_and_fetches_its_texts() -> None:
    a = first([])
    (gateway,) = (c for pod, c in a.containers() if c["name"] == "gateway")
    assert settings_of(gateway).model.more_models == f"other={OTHER}"
    policy = a.named("NetworkPolicy", "first-baton-gateway")["spec"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert 443 in ports


def test_another_model_that_no_pod_could_find_is_refused() -> None:
    wrong: Values = {"gateway": {"settings": {"moreModels": "a=demo, b=/models/b"}}}
    with pytest.raises(helm_python.HelmError, match=r"moreModels is /models/b: neither"):
        render(wrong)
    volume = {"modelVolume": {"existingClaim": "checkpoints"}}
    assert render({**wrong, **volume}).notes
