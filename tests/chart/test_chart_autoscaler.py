"""The autoscaler that the chart runs, where the values say so; each rule finds what it is for."""

from collections.abc import Callable
from copy import deepcopy

import pytest

from services.autoscaler.view import ROLES
from tests.chart.autoscaler_rules import plan_in
from tests.chart.invariants import RULES
from tests.chart.reachability import traffic_is_what_baton_needs
from tests.chart.release import NAMESPACE, Object, Release, component, render
from tests.chart.value_sets import VALUE_SETS

BY_NAME = {rule.__name__: rule for rule in (*RULES, traffic_is_what_baton_needs)}
Change = Callable[[Release], object]


@pytest.fixture(scope="module")
def builtin() -> Release:
    return render(VALUE_SETS["builtin"])


def container_of(release: Release) -> Object:
    (container,) = (item for role, item in release.containers() if role == "autoscaler")
    return container


def role_of(release: Release) -> Object:
    (role,) = (o for o in release.of_kind("Role") if component(o) == "autoscaler")
    return role


def replace_arg(release: Release, old: str, new: str) -> None:
    args = container_of(release)["args"]
    assert any(old in arg for arg in args)
    args[:] = [arg.replace(old, new) for arg in args]


def test_it_is_there_only_where_it_is_asked_for(builtin: Release) -> None:
    plan = plan_in(builtin)
    assert plan is not None and plan.mode == "builtin"
    prefill, decode = plan.view.roles["prefill"], plan.view.roles["decode"]
    assert (prefill.least, prefill.most, prefill.num_gpus) == (1, 8, 1)
    assert (decode.least, decode.most, decode.num_gpus) == (2, 4, 1)
    assert plan.view.max_gpus == 12 and plan.view.promise.wait_s == 0.5
    assert plan_in(render(VALUE_SETS["keda"])) is None
    advised = plan_in(render(VALUE_SETS["advised"]))
    assert advised is not None and advised.mode == "advise"


def test_without_prefill_workers_it_scales_decode_alone() -> None:
    """Of topology agg: its flags name no other pool, and its rights reach no other."""
    release = render(VALUE_SETS["builtin-agg"])
    plan = plan_in(release)
    assert plan is not None and plan.mode == "builtin"
    assert plan.place.deployments == {"decode": "rel-baton-decode"}
    assert plan.view.is_aggregated
    decode = plan.view.roles["decode"]
    assert (decode.least, decode.most, decode.num_gpus) == (1, 8, 2)
    named = [rule["resourceNames"] for rule in role_of(release)["rules"] if "resourceNames" in rule]
    assert named == [["rel-baton-decode"], ["rel-autoscaler"]]
    advised = plan_in(render({"prefill": {"enabled": False}, "autoscaler": {"advise": True}}))
    assert advised is not None and advised.mode == "advise" and advised.view.is_aggregated


def test_of_several_models_it_scales_the_one_of_its_release() -> None:
    """By the name that its workers register under; a host may be of IPv6."""
    shared = {**VALUE_SETS["builtin"], "networkPolicy": {"releases": ["another"]}}
    for settings, name in (
        ({"model": "/models/small", "servedModelName": "s"}, "s"),
        ({"model": "/models/small"}, "small"),
        ({"model": "org/small", "host": "::"}, "org/small"),
    ):
        values = {**shared, "settings": settings, "modelVolume": {"existingClaim": "c"}}
        args = container_of(render(values))["args"]
        assert f"--pool={name}" in args and all(isinstance(arg, str) for arg in args)
    assert "--host=::" in args
    assert not any("--pool" in arg for arg in container_of(render(VALUE_SETS["builtin"]))["args"])


def test_keda_asks_it_what_is_wanted() -> None:
    """Where its page says so; one pod for each worker that is wanted, within the same bounds."""
    release = render(VALUE_SETS["advised"])
    plan = plan_in(release)
    assert plan is not None
    for role in ROLES:
        asked = release.named("ScaledObject", f"rel-baton-{role}")["spec"]
        (trigger,) = asked["triggers"]
        assert trigger["metadata"] == {
            "url": f"http://rel-baton-autoscaler.{NAMESPACE}:{plan.port}/wanted",
            "valueLocation": role,
            "targetValue": "1",
        }
        bounds = plan.view.roles[role]
        assert (asked["minReplicaCount"], asked["maxReplicaCount"]) == (bounds.least, bounds.most)
    with_fallback = [item for item in release.of_kind("ScaledObject") if "fallback" in item["spec"]]
    assert [item["metadata"]["name"] for item in with_fallback] == ["rel-baton-decode"]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("autoscaler_looks_at_this_release", lambda r: replace_arg(r, "=rel-baton-", "=baton-")),
        (
            "autoscaler_looks_at_this_release",
            lambda r: replace_arg(r, "--prefill=rel-baton-prefill", "--prefill=rel-baton-decode"),
        ),
        (
            "autoscaler_looks_at_this_release",
            lambda r: replace_arg(r, "--release=rel", "--release=r"),
        ),
        ("autoscaler_has_its_rights_alone", lambda r: role_of(r)["rules"].pop()),
        (
            "autoscaler_has_its_rights_alone",
            lambda r: role_of(r)["rules"][0]["verbs"].append("patch"),
        ),
        ("autoscaler_has_its_rights_alone", lambda r: role_of(r)["rules"][0].pop("resourceNames")),
        ("autoscaled_have_no_replicas", lambda r: r.workload("decode")["spec"].update(replicas=3)),
        (
            "no_pod_has_a_token",
            lambda r: r.workload("autoscaler")["spec"]["template"]["spec"].update(
                automountServiceAccountToken=False
            ),
        ),
        (
            "traffic_is_what_baton_needs",
            lambda r: r.named("NetworkPolicy", "rel-baton-redis")["spec"]["ingress"][0][
                "from"
            ].pop(),
        ),
    ],
)
def test_what_would_be_wrong_is_found(builtin: Release, rule: str, change: Change) -> None:
    broken = deepcopy(builtin)
    assert not list(BY_NAME[rule](broken))
    change(broken)
    assert list(BY_NAME[rule](broken))


@pytest.mark.parametrize("values", ["keda", "advised"])
def test_an_admin_port_that_is_open_to_all_is_found(values: str) -> None:
    """KEDA's questions open the autoscaler's port alone, and only where it asks."""
    release = render(VALUE_SETS[values])
    assert not list(traffic_is_what_baton_needs(release))
    policy = release.named("NetworkPolicy", "rel-baton-gateway")["spec"]
    policy["ingress"].append({"ports": [{"port": 8001, "protocol": "TCP"}]})
    assert "open to strangers" in "".join(traffic_is_what_baton_needs(release))


def test_its_host_may_be_the_address_of_its_pod() -> None:
    """As that of the other processes: settings.host is for all."""
    values = {**VALUE_SETS["builtin"], "settings": {"host": "$(POD_IP)"}}
    container = container_of(render(values))
    assert "--host=$(POD_IP)" in container["args"]
    assert "POD_IP" in [item["name"] for item in container["env"]]
