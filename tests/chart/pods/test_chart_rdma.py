"""RDMA devices reach the pods whose transport reads over them; the notes say which one that is."""

from typing import Any

import helm_python
import pytest

from tests.chart.process_rules import processes
from tests.chart.reachability import passes
from tests.chart.release import Object, Release, render
from tests.chart.value_sets import PD_RDMA, RANKS, VALUE_SETS

RDMA = {"rdma": {"enabled": True, "resource": "vendor.example/hca", "count": 2}}
NO_NIXL = "by tcp where the engine image lacks nixl-cu13"


def devices(container: Object) -> dict[str, str]:
    """Those of RDMA, which are in limits and requests alike."""
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    found = {name: count for name, count in limits.items() if "/" in name and "gpu" not in name}
    assert found.items() <= requests.items()
    return found


def told(release: Release) -> dict[str, tuple[Any, ...]]:
    """Role -> devices, added capabilities, annotations and variables of RDMA."""
    found = {}
    for role, pod, container in processes(release):
        variables = [item["value"] for item in container["env"] if item["name"] == "UCX_TLS"]
        found[role] = (
            devices(container),
            container["securityContext"]["capabilities"].get("add", []),
            pod["metadata"].get("annotations", {}),
            variables,
        )
    return found


NOTHING: tuple[Any, ...] = ({}, [], {}, [])


def test_the_block_reaches_its_own_role_and_no_other_pod() -> None:
    release = render(PD_RDMA)
    assert told(release) == {
        "gateway": NOTHING,
        "prefill": (
            {"rdma/ib": "4"},
            ["IPC_LOCK"],
            {"k8s.v1.cni.cncf.io/networks": "roce"},
            ["rc,cuda_copy"],
        ),
        "decode": ({"rdma/roce_gdr": "1"}, [], {}, []),
    }
    others = [c for role, c in release.containers() if role not in told(release)]
    assert others
    assert not any("rdma" in str(c) or "IPC_LOCK" in str(c) for c in others)


@pytest.mark.parametrize(
    "name", sorted(set(VALUE_SETS) - {"pd-rdma", "colocated", "doctor-colocated"})
)
def test_whoever_asks_for_none_gets_none(name: str) -> None:
    for devices_of, added, _, variables in told(render(VALUE_SETS[name])).values():
        assert (devices_of, added, variables) == ({}, [], [])


def test_a_disabled_prefill_has_no_say() -> None:
    release = render({"prefill": {"enabled": False, **RDMA}})
    assert told(release) == {"gateway": NOTHING, "decode": NOTHING}
    assert "IPC_LOCK" not in release.notes


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"settings": {"transport": "tcp"}, "prefill": RDMA, "decode": RDMA},
            "prefill.rdma.enabled: settings.transport of prefill is tcp, so nothing would use "
            "vendor.example/hca",
        ),
        (
            {"prefill": RDMA, "decode": {**RDMA, "settings": {"transport": "tcp"}}},
            "settings.transport of decode is tcp",
        ),
        (
            {"prefill": {"enabled": False}, "decode": RDMA},
            "decode.rdma.enabled: prefill.enabled is false: KV moves only",
        ),
        ({"prefill": RDMA}, "prefill.rdma.enabled: the other role has no RDMA device"),
        ({"decode": RDMA}, "enable it for prefill and decode"),
        (
            {
                "prefill": {"settings": {"transport": "tcp"}},
                "decode": {"settings": {"transport": "nixl"}},
            },
            "the one offers nothing that the other reads",
        ),
        (
            {
                "prefill": {"settings": {"transport": "nixl"}},
                "decode": {"settings": {"transport": "nccl"}},
            },
            "settings.transport of prefill is nixl and of decode nccl: the one offers nothing",
        ),
        (
            {"settings": {"transport": "nccl"}, "decode": {"settings": {"tp": 2}}},
            "decode: transport nccl: workers with tp 2 hand over mapped, by nixl or by tcp",
        ),
    ],
)
def test_devices_that_nothing_would_use_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as refused:
        render(values)
    assert reason in str(refused.value)


HOST_PATH = {"transfer": {"hostPath": "/var/lib/kv"}}
NAMED = {"settings": {"transport": "nixl"}}
LINKED = {"settings": {"transport": "nccl"}}


@pytest.mark.parametrize(
    ("values", "between", "within"),
    [
        ({}, "tcp: no role has RDMA devices", "tcp: their pods share no folder"),
        (HOST_PATH, "tcp: no role has RDMA devices", "mapped: they meet in transfer.hostPath"),
        (
            PD_RDMA,
            f"nixl: both roles have RDMA devices (rdma/ib, rdma/roce_gdr); {NO_NIXL}",
            "nixl:",
        ),
        (PD_RDMA | HOST_PATH, "nixl: both roles have RDMA devices", "mapped: they meet"),
        (NAMED, "nixl: settings.transport is nixl; no role has RDMA devices", "nixl:"),
        (LINKED, "nccl: settings.transport is nccl; no role has RDMA devices", "nccl:"),
        (PD_RDMA | LINKED, "nccl: settings.transport is nccl; both roles have RDMA", "nccl:"),
        (HOST_PATH | NAMED, "nixl: settings.transport is nixl", "nixl: settings.transport is nixl"),
        (
            HOST_PATH | {"decode": {"settings": {"transport": "tcp"}}},
            "tcp: settings.transport of decode is tcp",
            "tcp: settings.transport of decode is tcp",
        ),
        (RANKS, "tcp: no role has RDMA devices", "tcp: their pods share no folder"),
        (RANKS | HOST_PATH, "tcp: no role has RDMA devices", "mapped:"),
        (RANKS | NAMED, "nixl: settings.transport is nixl", "nixl:"),
        (
            {"prefill": RDMA, "decode": {**RDMA, "settings": {"tp": 2}}},
            "nixl: both roles have RDMA devices",
            "nixl:",
        ),
    ],
)
def test_notes_say_which_transport_it_is_and_why(
    values: dict[str, Any], between: str, within: str
) -> None:
    notes = render(values).notes
    assert f"between nodes by {between}" in notes
    assert f"on one node by {within}" in notes


def test_without_prefill_workers_no_transport_is_named() -> None:
    assert "KV goes" not in render({"prefill": {"enabled": False}}).notes


ANY_PORT = 45_678
"""that nothing of ours names"""


def open_between(release: Release, port: int) -> set[tuple[str, str]]:
    """Which pods may connect to which at this port."""
    policies = release.of_kind("NetworkPolicy")
    pods = {role: pod["metadata"]["labels"] for role, pod in release.pods()}
    return {
        (source, target)
        for source, source_labels in pods.items()
        for target, target_labels in pods.items()
        if passes(policies, "egress", source_labels, target_labels, port)
        and passes(policies, "ingress", target_labels, source_labels, port)
    }


def test_ports_that_nccl_chooses_are_open_between_workers_where_it_is_named() -> None:
    policy = {"networkPolicy": {"enabled": True}}
    assert open_between(render(policy), ANY_PORT) == set()
    workers = ("prefill", "decode")
    every_pair = {(source, target) for source in workers for target in workers}
    assert open_between(render(policy | LINKED), ANY_PORT) == every_pair
