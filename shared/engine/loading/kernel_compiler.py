"""A process that compiles the kernels of a GPU worker's start, side by side, into Triton's cache.

Started by shared.engine.loading.kernel_compilation, which logs what it says and ends it. It never
touches a GPU. It forks those that compile, so that each has the list and everything imported.
"""

import fcntl
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import IO

from kernels.launching.compilation import compile_kernel, compile_loader
from shared.engine.loading.device_form import FORMS, DeviceForm
from shared.engine.loading.start_kernels import start_kernels
from shared.process import die_with_parent

MAX_PROCESSES = 8
PROGRESS_S = 3.0
"""between two lines about a long compilation"""

jobs_here: Sequence[Callable[[], None]] = ()
"""what this process, a forked one, may be told to do"""


def compile_once(form: DeviceForm, stamp: Path) -> bool:
    """Compile, and leave the stamp if all went well: that, or that somebody else has done so.

    Of several processes that want the same kernels one compiles, the others wait for it."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    with stamp.open("a") as file:
        _lock(file)
        if stamp.stat().st_size:
            say("all kernels were compiled meanwhile")
            return True
        start_s = time.monotonic()
        kernels = start_kernels(form).values()
        # Prompts come last in the list, and their kernels take longest.
        jobs: list[Callable[[], None]] = [compile_loader]
        jobs += [partial(compile_kernel, kernel) for kernel in reversed(kernels)]
        problems = do_all(jobs)
        summary = (
            f"{len(kernels)} kernels compiled in {time.monotonic() - start_s:.1f} s "
            f"by {num_processes(len(jobs))} processes"
        )
        say(summary if not problems else f"{summary}; {len(problems)} failed: {problems[0]}")
        if not problems:
            file.write(summary + "\n")
        return not problems


def do_all(jobs: Sequence[Callable[[], None]]) -> list[str]:
    """In processes that live as long as this takes; what went wrong, in words."""
    pool = ProcessPoolExecutor(
        num_processes(len(jobs)),
        multiprocessing.get_context("fork"),
        initializer=_begin,
        initargs=(os.getpid(), jobs),
    )
    with pool:
        left = {pool.submit(_do, index) for index in range(len(jobs))}
        problems: list[str] = []
        while left:
            done, left = wait(left, timeout=PROGRESS_S)
            problems += [problem for future in done if (problem := _problem(future.exception()))]
            if left:
                say(f"kernels: {len(jobs) - len(left)} of {len(jobs)} parts compiled so far")
    return problems


def num_processes(num_jobs: int) -> int:
    """That do this many jobs here."""
    return min(MAX_PROCESSES, len(os.sched_getaffinity(0)), num_jobs)


def say(line: str) -> None:
    """A line for the parent's log."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _lock(file: IO[str]) -> None:
    """Held until the file is closed or this process ends, however it does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another process compiles the same kernels")
        fcntl.flock(file, fcntl.LOCK_EX)


def _begin(parent_pid: int, jobs: Sequence[Callable[[], None]]) -> None:
    global jobs_here  # noqa: PLW0603  (what a pool's process starts with can be kept nowhere else)
    die_with_parent(parent_pid)
    jobs_here = jobs


def _do(index: int) -> None:
    jobs_here[index]()


def _problem(error: BaseException | None) -> str:
    if isinstance(error, BrokenProcessPool):
        return "a compiling process was killed"
    return "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]


def main(arguments: Sequence[str]) -> int:
    """`kernel_compiler PARENT_PID STAMP`, a DeviceForm on stdin: exit status."""
    parent_pid, stamp = arguments
    die_with_parent(int(parent_pid))
    form = FORMS.decode(sys.stdin.buffer.read())
    return 0 if compile_once(form, Path(stamp)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
