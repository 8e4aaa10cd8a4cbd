"""What must hold of the autoscaler in a rendering: its flags, and that it may do what it does."""

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from typing import Any

from services.autoscaler.kube.rights import LEASE, RIGHTS, SCALES, Right
from services.autoscaler.plan import Plan, plan_of
from services.cli.autoscaler import add_arguments
from tests.chart.release import Object, Release, component

AUTOSCALER = "autoscaler"


def plan_in(release: Release) -> Plan | None:
    """What its pods are told to do; None if there are none. Flags that do not parse raise."""
    for role, container in release.containers():
        if role == AUTOSCALER:
            parser = ArgumentParser(exit_on_error=False)
            add_arguments(parser)
            command, *flags = container["args"]
            assert command == AUTOSCALER
            return plan_of(vars(parser.parse_args(flags)))
    return None


def scaled_by_baton(release: Release) -> set[str]:
    """Deployments whose replicas it orders."""
    plan = plan_in(release)
    if plan is None or plan.mode != "builtin":
        return set()
    return set(plan.place.deployments.values())


def autoscaler_looks_at_this_release(release: Release) -> Iterator[str]:
    plan = plan_in(release)
    if plan is None:
        return
    deployments = {o["metadata"]["name"]: o for o in release.of_kind("Deployment")}
    for role, name in plan.place.deployments.items():
        if name not in deployments or component(deployments[name]) != role:
            yield f"the autoscaler takes {name} for the {role} workers"
            continue
        labels = deployments[name]["spec"]["template"]["metadata"]["labels"]
        if labels["app.kubernetes.io/instance"] != plan.place.release:
            yield f"the autoscaler looks for pods of release {plan.place.release}"


def autoscaler_has_its_rights_alone(release: Release) -> Iterator[str]:
    """As services/autoscaler/kube/rights.py lists them; one that advises only reads."""
    plan = plan_in(release)
    for item in release.of_kind("Role"):
        if component(item) != AUTOSCALER:
            continue
        assert plan is not None
        wanted = [rule for right in RIGHTS for rule in _rules(right, plan)]
        if _sorted(item["rules"]) != _sorted(wanted):
            yield f"the autoscaler's Role has {item['rules']}, and needs {wanted}"


def _rules(right: Right, plan: Plan) -> Iterator[Mapping[str, Any]]:
    verbs = [verb for verb in right.verbs if plan.mode == "builtin" or verb in ("get", "list")]
    if plan.mode != "builtin" and right.resource == LEASE.resource:
        return
    rule: dict[str, Any] = {"apiGroups": [right.api_group], "resources": [right.resource]}
    if right is SCALES:
        rule["resourceNames"] = list(plan.place.deployments.values())
    elif right is LEASE:
        rule["resourceNames"] = [f"{plan.place.release}-autoscaler"]
    yield {**rule, "verbs": verbs}


def _sorted(rules: list[Object] | list[Mapping[str, Any]]) -> list[str]:
    return sorted(str(sorted(rule.items())) for rule in rules)


AUTOSCALER_RULES = (autoscaler_looks_at_this_release, autoscaler_has_its_rights_alone)
"""each is broken on purpose in test_chart_autoscaler.py"""
