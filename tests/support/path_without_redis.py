"""A PATH as of a machine without redis-server.

`python -m tests.support.path_without_redis COMMAND ...` runs a command with it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def path_without_redis(folder: Path) -> str:
    """Fills `folder` with links to all commands on PATH but those that are a Redis."""
    for directory in os.environ["PATH"].split(os.pathsep):
        for command in Path(directory).glob("*") if Path(directory).is_dir() else ():
            link = folder / command.name
            if not command.name.startswith(("redis", "valkey")) and not link.is_symlink():
                link.symlink_to(command)
    return str(folder)


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="path-") as folder:
        environment = {**os.environ, "PATH": path_without_redis(Path(folder))}
        environment.pop("REDIS_URL", None)
        return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
