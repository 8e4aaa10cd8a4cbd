"""What a container may do is what its pod says, and no more.

`make image-test` runs this file, in a cluster whose pods are containers of podman.
"""

import re
from pathlib import Path

from tests.kube.chart_cluster import ROLES
from tests.kube.podman_container import memory_limit
from tests.kube.process_cluster import ProcessCluster

CGROUPS = Path("/sys/fs/cgroup")
USER = 10001


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def root_options(pid: int) -> set[str]:
    """How `/` is mounted."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()
    (options,) = (line.split()[5] for line in lines if line.split()[4] == "/")
    return set(options.split(","))


def limit_of(pid: int) -> int:
    """Of memory, by either version of control groups."""
    text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    first = re.search(r"^\d+:memory:/(.*)$", text, re.MULTILINE)
    if first:
        return int((CGROUPS / "memory" / first[1] / "memory.limit_in_bytes").read_text())
    second = re.search(r"^0::/(.*)$", text, re.MULTILINE)
    assert second, text
    return int((CGROUPS / second[1] / "memory.max").read_text())


def test_every_container_is_confined(cluster: ProcessCluster) -> None:
    looked_at = 0
    for role in ROLES:
        for pod in cluster.pods(role):
            (spec,) = pod["spec"]["containers"]
            (pid,) = cluster.kubelet.processes(pod["metadata"]["name"]).values()
            status = status_of(pid)
            assert status["Uid"].split() == status["Gid"].split() == [str(USER)] * 4, role
            held = {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
            assert held == {"0" * 16}, role
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), role
            assert "ro" in root_options(pid), role
            assert limit_of(pid) == memory_limit(spec), role
            looked_at += 1
    assert looked_at >= len(ROLES)
