"""The Role that the autoscaler needs: with exactly that everything works, with less something does
not, and the error says what is missing."""

from collections.abc import Callable, Iterable

import pytest

from services.autoscaler.kube.api import KubeApi
from services.autoscaler.kube.cluster import ClusterUnavailableError
from services.autoscaler.kube.kubernetes_cluster import KubernetesCluster
from services.autoscaler.kube.leadership import Leadership
from services.autoscaler.kube.lease import KubernetesLease
from services.autoscaler.kube.rights import LEASE, RIGHTS, SCALES, Names, Right, Use
from services.autoscaler.view import ROLES, Role
from tests.support.fakes.kube_api import NAMESPACE, FakeKubeApi, Rule
from tests.support.fakes.manual_clock import ManualClock

DEPLOYMENTS: dict[Role, str] = {role: f"rel-baton-{role}" for role in ROLES}
LEASE_NAME = "rel-baton-autoscaler"
NAMES: dict[Names, tuple[str, ...]] = {
    "workers": tuple(DEPLOYMENTS.values()),
    "lease": (LEASE_NAME,),
    "any": ("",),
}
Connect = Callable[..., KubeApi]


def rules_of(rights: Iterable[Right]) -> list[Rule]:
    """What RBAC makes of them."""
    return [
        Rule(right.api_group, right.resource, name, verb)
        for right in rights
        for verb in right.verbs
        for name in NAMES[right.names]
    ]


EACH_RULE = rules_of(RIGHTS)


def do_everything(server: FakeKubeApi, api: KubeApi) -> None:
    """All that an autoscaler ever asks: pods and scales, orders, and a lease from first to last."""
    cluster = KubernetesCluster(api, namespace=NAMESPACE, release="rel", deployments=DEPLOYMENTS)
    for role in ROLES:
        server.add_deployment(DEPLOYMENTS[role], 1)
        cluster.pods(role)
        cluster.order(role, 2, cluster.scale(role).version)
    lease = KubernetesLease(
        api, Leadership("pod-a"), ManualClock(), namespace=NAMESPACE, name=LEASE_NAME
    )
    lease.look()
    lease.look()
    lease.release()


def test_with_exactly_these_rights_everything_works(server: FakeKubeApi, connect: Connect) -> None:
    server.rules = set(EACH_RULE)
    do_everything(server, connect())
    assert set(server.replicas.values()) == {2}
    assert server.leases[LEASE_NAME]["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("missing", EACH_RULE, ids=lambda rule: "-".join(rule[1:]))
def test_without_one_verb_something_fails_and_the_error_names_it(
    server: FakeKubeApi, connect: Connect, missing: Rule
) -> None:
    server.rules = set(EACH_RULE) - {missing}
    with pytest.raises(ClusterUnavailableError) as caught:
        do_everything(server, connect())
    wanted = (
        f'the Role lacks apiGroups ["{missing.api_group}"], resources ["{missing.resource}"], '
        f'verbs ["{missing.verb}"]'
    )
    named = f', resourceNames ["{missing.name}"]' if missing.name else ""
    assert str(caught.value).endswith(wanted + named)
    assert "is forbidden: User" in str(caught.value)


def test_what_is_no_declared_right_cannot_be_used() -> None:
    with pytest.raises(AssertionError, match="no right to delete"):
        Use(LEASE, "delete", LEASE_NAME)
    with pytest.raises(AssertionError, match="no right to patch"):
        Use(SCALES, "patch", DEPLOYMENTS["decode"])
