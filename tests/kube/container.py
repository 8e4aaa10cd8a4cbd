"""One container as a process of this machine, with a file tree and process ids of its own.

The tree is this machine's, read-only, under the volumes; the image is a checkout. The process
is the container's number 1, without capabilities, as the user that the pod names.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.kube.api_server import Object
from tests.rules.sources import ROOT

KILLED_S = 0.01
CODE = "/opt/baton"
"""where a container finds its checkout"""
PYTHON, INTERPRETER = Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()
IMAGE = {
    "PATH": f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "PYTHONPATH": CODE,
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "TRITON_INTERPRET": "1",
}
"""what an image's own environment would say"""
HASTY = "hasty"
"""in an image's name: its autoscaler waits seconds where others wait minutes"""
HASTY_IMAGE = {"PYTHONPATH": f"{CODE}/tests/kube/hasty:{CODE}"}


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Identity:
    """Whom the process runs as."""

    user: int
    group: int
    volumes_group: int


@dataclass(frozen=True)
class Start:
    """What a container is started with."""

    place: Path
    """a new folder that is not on the file system of `/`; the log is there too"""
    spec: Object
    """of the container in its pod"""
    command: Sequence[str]
    environ: Mapping[str, str]
    mounts: Sequence[Mount]
    identity: Identity
    code: Path = ROOT
    """the checkout that is the image of a container that is a process"""


class Container:
    """Runs from the constructor on."""

    def __init__(self, start: Start) -> None:
        self.log = start.place / "log"
        self._environ = {**IMAGE, **start.environ}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603
                self._begun(start),
                env=self._environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _begun(self, start: Start) -> list[str]:
        """The command that lasts as long as the container, and ends with its exit code."""
        root, skeleton = start.place / "root", start.place / "skeleton"
        pythons = [Mount(path, str(path), read_only=True) for path in (PYTHON, INTERPRETER)]
        mounts = [*start.mounts, Mount(start.code, CODE, read_only=True), *pythons]
        for mount in mounts:
            _make_mount_point(skeleton, mount)
        root.mkdir()
        script = "\n".join(_tree(root, skeleton, mounts))
        restrictions = " ".join(_restrictions(start.identity))
        script += f'\nexec chroot {root} setpriv {restrictions} -- "$@"'
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        return [*apart, "sh", "-euc", script, "container", *start.command]

    def exit_code(self) -> int | None:
        """As Kubernetes counts: 128 + the signal of one that was killed."""
        code = self._process.poll()
        return None if code is None else code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        first = self.first()
        if first is not None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(first, number)

    def kill(self) -> None:
        """With all that it started: what has no process 1 any more ends."""
        while self.exit_code() is None:
            self.signal(signal.SIGKILL)
            time.sleep(KILLED_S)

    def run(self, command: Sequence[str], timeout_s: float) -> bool:
        """Inside, as a probe or a hook does; whether it succeeded in time."""
        first = self.first()
        if first is None:
            return False
        inside = ["nsenter", "--target", str(first), "--mount", "--pid", "--root"]
        try:
            done = subprocess.run(  # noqa: S603
                [*inside, *command],
                env=self._environ,
                check=False,
                timeout=timeout_s,
                capture_output=True,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def first(self) -> int | None:
        """Process 1 of the container, as the rest of the machine counts."""
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        except OSError:
            return None
        return int(children[0]) if children and self._process.poll() is None else None


def _make_mount_point(skeleton: Path, mount: Mount) -> None:
    point = skeleton / mount.target.lstrip("/")
    if mount.source.is_dir():
        point.mkdir(parents=True, exist_ok=True)
    else:
        point.parent.mkdir(parents=True, exist_ok=True)
        point.touch()


def _tree(root: Path, skeleton: Path, mounts: Sequence[Mount]) -> list[str]:
    """Shell lines that make the file tree at `root`."""
    lines = [
        f"mount -t overlay overlay -o lowerdir={skeleton}:/ {root}",
        f"mount -t proc proc {root}/proc",
        f"mount --rbind /dev {root}/dev",
        f"mount --rbind /sys {root}/sys",
    ]
    for mount in mounts:
        target = shlex.quote(f"{root}{mount.target}")
        lines.append(f"mount --bind {shlex.quote(str(mount.source))} {target}")
        if mount.read_only:
            lines.append(f"mount -o remount,bind,ro {target}")
    return lines


def _restrictions(identity: Identity) -> list[str]:
    return [
        f"--reuid={identity.user}",
        f"--regid={identity.group}",
        f"--groups={identity.volumes_group}",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
    ]
