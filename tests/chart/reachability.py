"""Which connections the NetworkPolicies of a release admit, computed as a network plugin would."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.chart.autoscaler_rules import AUTOSCALER, plan_in
from tests.chart.invariants import matches
from tests.chart.process_rules import COLOCATED, processes, settings_of
from tests.chart.release import Object, Release, component

DOCTOR, VERDICT = "doctor", "verdict"
SCRAPED = ("gateway", AUTOSCALER)
WORKERS = ("prefill", "decode", COLOCATED)
OUTSIDE = "outside"
"""a pod of somebody else, in this namespace"""
Edge = tuple[str, str, int]
"""(from, to, port)"""


def needed(release: Release) -> set[Edge]:
    """Every connection Baton makes inside a release."""
    settings = {role: settings_of(container) for role, _, container in processes(release)}
    pods = {role: component(pod) for role, pod, _ in processes(release)}
    workers = [role for role in ("prefill", "decode") if role in settings]
    edges: set[Edge] = {("gateway", pods[role], settings[role].worker.port) for role in workers}
    network = settings["gateway"].network
    edges |= {("test", "gateway", port) for port in (network.port, network.admin_port)}
    edges |= {(pods["decode"], pods[role], settings[role].worker.transfer_port) for role in workers}
    if len(workers) == 2:  # before it is ready, each asks the other for a hand-over
        for own, other in (workers, workers[::-1]):
            edges.add((pods[own], pods[other], settings[other].worker.port))
    if VERDICT in dict(release.pods()):
        edges.add((VERDICT, "gateway", network.port))
    clients = {*pods.values(), *({DOCTOR} & set(dict(release.pods())))}
    if DOCTOR in clients:
        edges |= {(DOCTOR, *edge[1:]) for edge in edges if edge[1] in map(pods.get, workers)}
        edges.add((DOCTOR, "gateway", network.admin_port))
    for role, pod in release.pods():
        if role == "redis":
            port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
            edges |= {(client, "redis", port) for client in clients}
            if plan_in(release) is not None:
                edges.add((AUTOSCALER, "redis", port))
    return edges


def admitted(release: Release, sources: Mapping[str, Mapping[str, str]]) -> set[Edge]:
    """Of all connections from these labelled pods to a port that a pod of ours listens on. One
    worker may want another's of its kind."""
    policies = release.of_kind("NetworkPolicy")
    pods = {role: pod["metadata"]["labels"] for role, pod in release.pods()}
    ports = {port["containerPort"] for _, c in release.containers() for port in c.get("ports", [])}
    return {
        (source, target, port)
        for source, source_labels in sources.items()
        for target, target_labels in pods.items()
        for port in ports
        if (source != target or source in WORKERS)
        and passes(policies, "egress", source_labels, target_labels, port)
        and passes(policies, "ingress", target_labels, source_labels, port)
    }


def traffic_is_what_baton_needs(release: Release) -> Iterator[str]:
    """Exactly the connections needed, and from outside the gateway and scrapes at most."""
    if not release.of_kind("NetworkPolicy"):
        return
    pods = {role: pod["metadata"]["labels"] for role, pod in release.pods()}
    wanted, found = needed(release), admitted(release, pods)
    # Whoever may call the gateway is up to the values: anyone by default, pods of ours too.
    open_ports = _open_ports(release)
    public = {
        e for e in found if e[1] in SCRAPED and e[0] not in ("test", VERDICT) and e[2] in open_ports
    }
    for edge in wanted - found:
        yield f"{edge} is needed and refused"
    for edge in found - wanted - public:
        yield f"{edge} is admitted and not needed"
    for edge in admitted(release, {OUTSIDE: {"app": "other"}}):
        if edge[1] not in SCRAPED or edge[2] not in open_ports:
            yield f"{edge} is open to strangers"


def _open_ports(release: Release) -> set[int]:
    """The gateway's port for clients; those for scrapes, and for KEDA's questions, only where the
    values name no scraper."""
    (network,) = (settings_of(c).network for role, _, c in processes(release) if role == "gateway")
    plan = plan_in(release)
    asked = set() if plan is None else {plan.port}
    if release.of_kind("ServiceMonitor", "PodMonitor"):
        scraped = {network.admin_port} | asked
    elif "metrics-api" in {_asks_by(item) for item in release.of_kind("ScaledObject")}:
        scraped = asked
    else:
        return {network.port}
    opened = {
        port["port"]
        for policy in release.of_kind("NetworkPolicy")
        for rule in policy["spec"].get("ingress", [])
        for port in rule["ports"]
        if "from" not in rule
    }
    return {network.port} | (scraped & opened)


def _asks_by(scaled: Object) -> str:
    (trigger,) = scaled["spec"]["triggers"]
    return str(trigger["type"])


def outward_ports(release: Release, role: str) -> set[int]:
    """Ports a role may dial anywhere."""
    labels = release.workload(role)["spec"]["template"]["metadata"]["labels"]
    return {
        port["port"]
        for policy in release.of_kind("NetworkPolicy")
        if matches(policy["spec"]["podSelector"], labels)
        for rule in policy["spec"].get("egress", [])
        if "to" not in rule
        for port in rule["ports"]
    }


def passes(
    policies: list[Object],
    direction: str,
    own: Mapping[str, str],
    other: Mapping[str, str],
    port: int,
) -> bool:
    """Whether `own` may exchange this traffic: no policy, or one that allows it."""
    binding = [
        policy["spec"]
        for policy in policies
        if matches(policy["spec"]["podSelector"], own)
        and direction.capitalize() in policy["spec"]["policyTypes"]
    ]
    rules = [rule for spec in binding for rule in spec.get(direction, [])]
    return not binding or any(_allows(rule, direction, other, port) for rule in rules)


def _allows(rule: Object, direction: str, other: Mapping[str, str], port: int) -> bool:
    peers: list[dict[str, Any]] = rule.get("from" if direction == "ingress" else "to", [])
    reached = not peers or any(
        set(peer) == {"podSelector"} and matches(peer["podSelector"], other) for peer in peers
    )
    return reached and any(
        item.get("port", port) == port and item["protocol"] == "TCP" for item in rule["ports"]
    )
