"""Everything a pod names exists: in the release, or among what its values say exists."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from tests.chart.invariants import HOOK
from tests.chart.release import Object, Release, component, secrets_script

EXTERNAL = {
    ("redis", "existingSecret"): ("Secret", ("url", "password")),
    ("redis", "caSecret"): ("Secret", ("ca.crt",)),
    ("cellSecret", "existingSecret"): ("Secret", ("key",)),
    ("kvSecret", "existingSecret"): ("Secret", ("key",)),
    ("apiKeys", "existingSecret"): ("Secret", ("key", "testKey")),
    ("hub", "tokenSecret"): ("Secret", ("tokenKey",)),
    ("modelVolume", "existingClaim"): ("PersistentVolumeClaim", ()),
}
"""value that names an object of the user -> its kind, and its keys or the values that name them"""
DEFAULT_KEYS = {
    ("cellSecret", "key"): "cell-secret",
    ("kvSecret", "key"): "kv-secret",
    ("apiKeys", "key"): "keys.toml",
    ("hub", "tokenKey"): "token",
}


def existing(release: Release, values: Mapping[str, Any]) -> dict[tuple[str, str], set[str]]:
    """(kind, name) -> keys of its data, of all that pods may refer to."""
    found = {
        (item["kind"], item["metadata"]["name"]): set(item.get("data", ()))
        for item in release.objects
    }
    for (block, value), (kind, keys) in EXTERNAL.items():
        given = values.get(block, {})
        if given.get(value):
            found[kind, given[value]] = {
                given.get(key, DEFAULT_KEYS.get((block, key), key)) for key in keys
            }
    for item in release.of_kind("Job"):
        if component(item) != HOOK:
            continue
        _, name, *_ = item["spec"]["template"]["spec"]["containers"][0]["args"]
        found["Secret", name] = set(secrets_script()["manifest"](name, {}, "")["data"])
    return found


def references_resolve(release: Release, values: Mapping[str, Any]) -> Iterator[str]:
    known = existing(release, values)
    for role, pod in release.pods():
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        mounted: set[str] = set()
        for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            mounts = container.get("volumeMounts", [])
            mounted |= {mount["name"] for mount in mounts}
            yield from _files_exist(role, container, volumes)
            paths = [mount["mountPath"] for mount in mounts]
            if len(set(paths)) != len(paths):
                yield f"{role} mounts two volumes at one path"
        if mounted != set(volumes):
            yield f"{role}: volumes without mount or mounts without volume"
        for volume in volumes.values():
            yield from _volume_exists(role, volume, known)


def _volume_exists(
    role: str, volume: Object, known: Mapping[tuple[str, str], set[str]]
) -> Iterator[str]:
    for field, name, kind in (
        ("secret", "secretName", "Secret"),
        ("configMap", "name", "ConfigMap"),
        ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"),
    ):
        if field not in volume:
            continue
        source = volume[field]
        keys = known.get((kind, source[name]))
        if keys is None:
            yield f"{role}: no {kind} {source[name]}"
        elif not {item["key"] for item in source.get("items", [])} <= keys:
            yield f"{role}: {kind} {source[name]} lacks a key"


def _files_exist(role: str, container: Object, volumes: Mapping[str, Object]) -> Iterator[str]:
    """Variables that name a file of ours name one that a volume puts there."""
    files = {
        str(PurePosixPath(mount["mountPath"]) / item["path"])
        for mount in container.get("volumeMounts", [])
        for item in volumes.get(mount["name"], {}).get("secret", {}).get("items", [])
    }
    for variable in container.get("env", []):
        if variable["name"].endswith(("_FILE", "_PATH")) and variable["value"] not in files:
            yield f"{role}: {variable['name']} names no file that is mounted"
