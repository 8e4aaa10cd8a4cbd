"""The images of docker/, built by buildah as root: no engine's daemon, no registry.

`build_stand_ins.sh` makes the base that they build on.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kube.podman_container import STORE
from tests.rules.sources import ROOT

BASE = "localhost/python:3.12-slim"
ENVIRONMENT = {
    "CONTAINERS_STORAGE_CONF": str(STORE / "storage.conf"),
    "BUILDAH_ISOLATION": "chroot",
}


def buildah(*arguments: str) -> str:
    """What it prints; AssertionError with the end of its log where it fails."""
    done = subprocess.run(  # noqa: S603
        ["buildah", *arguments],  # noqa: S607
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def checkout(folder: Path) -> Path:
    """A copy of the files that git knows, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file() and not source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    return folder


def build(context: Path, name: str, mounts: Sequence[str]) -> float:
    """Seconds that docker/NAME.Dockerfile took to become localhost/baton-NAME."""
    start_s = time.monotonic()
    flags = ["--layers", "--pull-never", "--format", "docker", *mounts]
    file = str(context / "docker" / f"{name}.Dockerfile")
    buildah("build", *flags, "--file", file, "--tag", f"localhost/baton-{name}", str(context))
    return time.monotonic() - start_s


def size_over_base(image: str) -> float:
    """MB of the layers that the base does not have."""
    base, layers = (layers_of(name) for name in (BASE, image))
    assert list(layers)[: len(base)] == list(base), f"{image} is not built on {BASE}"
    return sum(size for digest, size in layers.items() if digest not in base) / 1e6


def layers_of(image: str) -> dict[str, int]:
    """Digest -> bytes, lowest first."""
    inspected = json.loads(buildah("inspect", "--type", "image", image))
    layers = json.loads(inspected["Manifest"])["layers"]
    return {layer["digest"]: layer["size"] for layer in layers}


def said_inside(image: str, *command: str) -> str:
    """By a command in a container of the image."""
    container = buildah("from", "--pull-never", image).strip()
    try:
        return buildah("run", container, "--", *command)
    finally:
        buildah("rm", container)


def pip_mounts(folder: Path) -> list[str]:
    """How pip is configured on this machine, as flags that mount it: a build has no other way to
    know where packages are. `folder` holds the file of it."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, capture_output=True, text=True, check=True)  # noqa: S603
    pairs = [line.partition("=") for line in listed.stdout.splitlines()]
    found = {name.rpartition(".")[2]: value.strip("'\"") for name, _, value in pairs}
    file = folder / "pip.conf"
    lines = [f"{name} = {value}" for name, value in found.items()]
    file.write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
    places = {
        Path(word.removeprefix("file://")) for value in found.values() for word in value.split()
    }
    there = sorted({top(path) for path in places if path.is_absolute() and path.exists()})
    return [f"--volume={file}:/etc/pip.conf:ro", *(f"--volume={path}:{path}:ro" for path in there)]


def top(path: Path) -> Path:
    """What has to be mounted for a file or folder: an index of files may point next to itself."""
    return path.parent if path.name == "simple" else path
