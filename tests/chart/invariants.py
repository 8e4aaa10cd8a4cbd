"""What must hold of every rendering, beyond what Kubernetes itself checks. Each rule yields
sentences; none means it holds. `process_rules`, `references` and `reachability`
hold the other rules."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.chart.autoscaler_rules import AUTOSCALER, AUTOSCALER_RULES, scaled_by_baton
from tests.chart.release import Object, Release, component

Rule = Callable[[Release], Iterator[str]]
SAFE_VOLUMES = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "secret"}
HOOK = "secrets"
"""component of what makes the release's Secret"""
HOOK_LIFE = ("pre-install,pre-upgrade", "before-hook-creation,hook-succeeded")
ORDINARY = {"cpu", "memory", "ephemeral-storage"}


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector of ours selects these labels."""
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions), "this knows In only"
    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


def selectors_match_labels(release: Release) -> Iterator[str]:
    pods = {role: pod["metadata"]["labels"] for role, pod in release.pods()}
    for item in release.of_kind("Deployment"):
        if not matches(item["spec"]["selector"], pods[component(item)]):
            yield f"{_name(item)} does not select its own pods"
    for item in release.of_kind("Service", "PodDisruptionBudget"):
        selector = item["spec"]["selector"]
        wanted = selector if item["kind"] == "PodDisruptionBudget" else {"matchLabels": selector}
        if [role for role, labels in pods.items() if matches(wanted, labels)] != [component(item)]:
            yield f"{_name(item)} does not select the pods of {component(item)} alone"


def monitors_and_spreads_match_labels(release: Release) -> Iterator[str]:
    pods = {role: pod["metadata"]["labels"] for role, pod in release.pods()}
    services = [item["metadata"]["labels"] for item in release.of_kind("Service")]
    for item in release.of_kind("ServiceMonitor"):
        if not any(_selects(item, labels) for labels in services):
            yield f"{_name(item)} selects no Service"
    for item in release.of_kind("PodMonitor"):
        if not _selects(item, pods[component(item)]):
            yield f"{_name(item)} does not select the pods of {component(item)}"
    for role, pod in release.pods():
        for spread in pod["spec"].get("topologySpreadConstraints", []):
            if not matches(spread["labelSelector"], pods[role]):
                yield f"{role} spreads over pods that are not its own"


def _selects(item: Object, labels: Mapping[str, str]) -> bool:
    return matches(item["spec"]["selector"], labels)


def ports_exist(release: Release) -> Iterator[str]:
    """The ports that Services, probes and monitors name are ports of their pods."""
    ports = {role: _port_names(pod) for role, pod in release.pods()}
    for service in release.of_kind("Service"):
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in ports[component(service)]:
                yield f"{_name(service)} leads to no port {port['targetPort']}"
    for role, container in release.containers():
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            name = container.get(probe, {}).get("httpGet", {}).get("port")
            if name is not None and name not in ports[role]:
                yield f"{role} has no port {name} to probe"
    services = release.of_kind("Service")
    for item in release.of_kind("ServiceMonitor"):
        selected = [o for o in services if _selects(item, o["metadata"]["labels"])]
        named = {port["name"] for service in selected for port in service["spec"]["ports"]}
        yield from (
            f"{_name(item)} scrapes no port"
            for end in item["spec"]["endpoints"]
            if end["port"] not in named
        )
    for item in release.of_kind("PodMonitor"):
        yield from (
            f"{_name(item)} scrapes no port"
            for end in item["spec"]["podMetricsEndpoints"]
            if end["port"] not in ports[component(item)]
        )


def services_exist(release: Release) -> Iterator[str]:
    """What Ingress, HTTPRoute and `helm test` call by name is there, with that port."""
    services = {o["metadata"]["name"]: o["spec"]["ports"] for o in release.of_kind("Service")}
    for item in release.of_kind("Ingress"):
        for path in item["spec"]["rules"][0]["http"]["paths"]:
            backend = path["backend"]["service"]
            names = [port["name"] for port in services.get(backend["name"], [])]
            if backend["port"]["name"] not in names:
                yield f"{_name(item)} leads nowhere"
    for item in release.of_kind("HTTPRoute"):
        for backend in item["spec"]["rules"][0]["backendRefs"]:
            numbers = [port["port"] for port in services.get(backend["name"], [])]
            if backend["port"] not in numbers:
                yield f"{_name(item)} leads nowhere"
    _, url, *_, admin_url = dict(release.pods())["test"]["spec"]["containers"][0]["args"]
    for asked in (url, admin_url):
        if asked not in [f"http://{name}:{ports[0]['port']}" for name, ports in services.items()]:
            yield f"helm test asks {asked}, which is no Service"


def _port_names(pod: Object) -> set[str]:
    return {port["name"] for c in pod["spec"]["containers"] for port in c.get("ports", [])}


def autoscaled_have_no_replicas(release: Release) -> Iterator[str]:
    scalers = release.of_kind("HorizontalPodAutoscaler", "ScaledObject")
    targets = [item["spec"]["scaleTargetRef"]["name"] for item in scalers]
    targets += sorted(scaled_by_baton(release))
    if len(targets) != len(set(targets)):
        yield f"of {targets} one is scaled by two"
    deployments = {o["metadata"]["name"]: o for o in release.of_kind("Deployment")}
    for target in targets:
        if target not in deployments:
            yield f"an autoscaler looks for {target}"
    for name, item in deployments.items():
        if (name in targets) == ("replicas" in item["spec"]):
            yield f"{name} is scaled by two, or by none"


def devices_are_guaranteed(release: Release) -> Iterator[str]:
    for role, container in release.containers():
        resources = container["resources"]
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for name in (set(limits) | set(requests)) - ORDINARY:
            if limits.get(name) != requests.get(name):
                yield f"{role}: {name} differs in limits and requests"
            if not isinstance(limits.get(name), str):
                yield f"{role}: {name} is not quoted"
        if "memory" not in limits:
            yield f"{role}: memory has no limit"


def every_container_is_restricted(release: Release) -> Iterator[str]:
    for role, pod in release.pods():
        spec = pod["spec"]
        security = spec["securityContext"]
        if security.get("runAsNonRoot") is not True or security.get("runAsUser") == 0:
            yield f"{role} may run as root"
        if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{role} has no seccomp profile"
        if {"hostNetwork", "hostPID", "hostIPC"} & set(spec):
            yield f"{role} shares a namespace of its node"
        for volume in spec.get("volumes", []):
            if set(volume) - SAFE_VOLUMES and not _is_where_workers_meet(role, volume):
                yield f"{role}: volume {volume['name']} is not allowed"
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{role}: volume {volume['name']} has no size limit"
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            yield from _container_problems(role, container)


def _is_where_workers_meet(role: str, volume: Object) -> bool:
    """The one folder of a node that the chart mounts, where values ask for it."""
    folder = volume.get("hostPath", {})
    return (
        role in ("prefill", "decode", "colocated")
        and volume["name"] == "transfer"
        and set(volume) == {"name", "hostPath"}
        and folder.get("type") == "Directory"
    )


def _container_problems(role: str, container: Object) -> Iterator[str]:
    security = container["securityContext"]
    if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
        yield f"{role} may gain privileges"
    if security.get("readOnlyRootFilesystem") is not True:
        yield f"{role} may write to its image"
    capabilities = security.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"]:
        yield f"{role} keeps capabilities"
    rdma = any("rdma" in name for name in container["resources"].get("limits", {}))
    if capabilities.get("add") not in (None, ["IPC_LOCK"] if rdma else None):
        yield f"{role} adds capabilities"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield f"{role} takes a port of its node"


def no_pod_has_a_token(release: Release) -> Iterator[str]:
    """But the hook's and the autoscaler's."""
    accounts = {o["metadata"]["name"]: o for o in release.of_kind("ServiceAccount")}
    for account in accounts.values():
        if account.get("automountServiceAccountToken") is not False:
            yield f"{_name(account)} hands out its token"
    for role, pod in release.pods():
        if pod["spec"].get("automountServiceAccountToken") is not (role in (HOOK, AUTOSCALER)):
            yield f"{role} gets a token, or should have one"
        if pod["spec"].get("serviceAccountName") not in accounts:
            yield f"{role} has no ServiceAccount of ours"
        if pod["spec"].get("enableServiceLinks") is not False:
            yield f"{role} gets variables of Services, which name no setting"


def the_hook_alone_has_rights_and_only_while_it_runs(release: Release) -> Iterator[str]:
    for item in release.of_kind("ClusterRole", "ClusterRoleBinding"):
        yield f"{_name(item)} grants what nothing here needs"
    roles = [o for o in release.of_kind("Role") if component(o) != AUTOSCALER]
    bindings = [o for o in release.of_kind("RoleBinding") if component(o) != AUTOSCALER]
    for item in roles:
        if item["rules"] != [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}]:
            yield f"{_name(item)} grants more than to create Secrets"
    pods = dict(release.pods())
    for item in bindings:
        names = [subject["name"] for subject in item["subjects"]]
        if names != [pods[HOOK]["spec"]["serviceAccountName"]]:
            yield f"{_name(item)} grants it to {names}"
    weights: dict[str, int] = {}
    for item in release.objects:
        if component(item) == HOOK or item in roles or item in bindings:
            found = item["metadata"].get("annotations", {})
            weights[item["kind"]] = int(found.get("helm.sh/hook-weight", 0))
            if (found.get("helm.sh/hook"), found.get("helm.sh/hook-delete-policy")) != HOOK_LIFE:
                yield f"{_name(item)} is not gone when the hook has succeeded"
    if weights and any(weights[kind] >= weights["Job"] for kind in weights if kind != "Job"):
        yield "the hook runs before it has its rights"


def secrets_are_files(release: Release) -> Iterator[str]:
    """And none is in the release: whoever may read what Helm stores would read it too."""
    for item in release.of_kind("Secret"):
        yield f"{_name(item)} is rendered"
    for role, container in release.containers():
        if "secretKeyRef" in str(container) or "secretRef" in str(container):
            yield f"{role} has a secret in its environment"


def _name(item: Object) -> str:
    return f"{item['kind']} {item['metadata']['name']}"


RULES: tuple[Rule, ...] = (
    selectors_match_labels,
    monitors_and_spreads_match_labels,
    ports_exist,
    services_exist,
    autoscaled_have_no_replicas,
    devices_are_guaranteed,
    every_container_is_restricted,
    no_pod_has_a_token,
    the_hook_alone_has_rights_and_only_while_it_runs,
    secrets_are_files,
    *AUTOSCALER_RULES,
)
