"""Mounts that nobody else sees."""

import os
import subprocess
from functools import cache

PRIVATE = ("--mount",) if os.geteuid() == 0 else ("--user", "--map-root-user", "--mount")


def with_own_mounts(command: list[str]) -> list[str]:
    """The command, in a mount namespace of its own, in which it may mount."""
    return ["unshare", *PRIVATE, *command]


@cache
def may_mount() -> bool:
    """Containers often forbid it, also to root."""
    try:
        tried = subprocess.run(  # noqa: S603
            with_own_mounts(["true"]), capture_output=True, check=False, timeout=20
        )
    except OSError:
        return False
    return tried.returncode == 0
