"""What a figure depends on besides the load: versions, machine, command."""

import os
import platform
import resource
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from shared.release import release


def machine_record(command_line: Sequence[str]) -> dict[str, Any]:
    """The JSON line; holds no key."""
    return {
        "kind": "environment",
        "command": " ".join(["baton", *command_line]),
        "unix_time_s": round(time.time(), 3),
        "baton": release(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "num_cpus": os.cpu_count(),
        "load_average": _load_average(),
        "event_loop": _event_loop(),
    }


def allow_many_sockets() -> None:
    """A thousand streams are a thousand open files, in children too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _load_average() -> list[float] | None:
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return None


def _event_loop() -> str:
    """As `shared.event_loop` chooses."""
    try:
        return f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        return "asyncio"
