"""Commands in a namespace of their own: what they do to mounts, or to the network, nobody sees."""

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Literal

Kind = Literal["mount", "net"]
AS_ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user")


def unshared(kind: Kind, command: Sequence[str]) -> list[str]:
    """The command, with the right to change what it has for itself."""
    return ["unshare", *AS_ROOT, f"--{kind}", *command]


@cache
def can_run(kind: Kind, script: str) -> bool:
    """Whether the shell script succeeds there. Containers often forbid it, also to root."""
    try:
        tried = subprocess.run(  # noqa: S603
            unshared(kind, ["sh", "-c", script]), capture_output=True, check=False, timeout=20
        )
    except OSError:
        return False
    return tried.returncode == 0
