"""Other processes that keep cores busy: `python -m tests.campaigns.busy_cores PARENT_PID`."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid

from shared.process import die_with_parent


@contextmanager
def busy_cores(num: int) -> Iterator[None]:
    """So many processes that only compute, until the end."""
    command = [sys.executable, "-m", "tests.campaigns.busy_cores", str(getpid())]
    processes = [subprocess.Popen(command) for _ in range(num)]  # noqa: S603
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    while True:
        pass
