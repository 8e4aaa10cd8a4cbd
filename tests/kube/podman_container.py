"""One container as podman and runc run it: from the image that the pod names, with the security
context and the memory limit of its spec. Network and names are the cluster's own, as for processes.
"""

import os
import subprocess
from pathlib import Path

from tests.kube.api_server import Object
from tests.kube.container import Container, Identity, Mount, Start

STORE = Path(os.environ.get("KUBE_TEST_CACHE", Path.home() / ".cache" / "baton")) / "images"
"""where tests/images builds"""
OWN = ("/run", "/var/lib/containers", "/dev/shm")  # noqa: S108 a mount point
"""what podman keeps of a machine's containers, here those of the test alone"""
CONFIG = Path("/run/storage.conf")
STORAGE = f"""
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
[storage.options]
additionalimagestores = ["{STORE}/graph"]
"""
PODMAN = ["podman", "--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=none"]
LIMITS = ["--ulimit=nproc=10000:10000", "--ulimit=nofile=1024:10000"]
"""podman's own may be above what the user of the tests may raise them to"""
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def prepare() -> None:
    """In a mount namespace of the test's own; what podman leaves ends with it."""
    for folder in OWN:
        Path(folder).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)  # noqa: S603, S607
    CONFIG.write_text(STORAGE, encoding="utf-8")


class PodmanContainer(Container):
    """`prepare` comes first."""

    def _begun(self, start: Start) -> list[str]:
        self._pid_file = start.place / "pid"
        self._environ = {**os.environ, "CONTAINERS_STORAGE_CONF": str(CONFIG)}
        return [
            *PODMAN,
            "run",
            "--rm",
            "--pull=never",
            "--network=host",
            "--cgroup-parent=/",  # podman's own gives all containers the weight of one process
            f"--pidfile={self._pid_file}",
            *LIMITS,
            *confinement(start.spec, start.identity),
            *(f"--volume={volume(mount)}" for mount in start.mounts),
            *(f"--env={name}={value}" for name, value in start.environ.items()),
            *(["--entrypoint="] if "command" in start.spec else []),
            start.spec["image"],
            *start.command,
        ]

    def first(self) -> int | None:
        try:
            return int(self._pid_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # not yet


def confinement(spec: Object, identity: Identity) -> list[str]:
    """What the spec of a container allows, as podman's flags."""
    security = spec.get("securityContext", {})
    flags = ["--read-only-tmpfs=false", f"--user={identity.user}:{identity.group}"]
    flags.append(f"--group-add={identity.volumes_group}")
    flags += [f"--cap-drop={name.lower()}" for name in security["capabilities"]["drop"]]
    if security.get("readOnlyRootFilesystem"):
        flags.append("--read-only")
    if security.get("allowPrivilegeEscalation") is False:
        flags.append("--security-opt=no-new-privileges")
    if "memory" in spec.get("resources", {}).get("limits", {}):
        flags.append(f"--memory={memory_limit(spec)}b")
    return flags


def memory_limit(spec: Object) -> int:
    """In bytes."""
    text: str = spec["resources"]["limits"]["memory"]
    return int(text[:-2]) * UNITS[text[-2:]]


def volume(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}"
