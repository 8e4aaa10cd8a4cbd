"""`baton up --detach`: the same `up` in a session of its own; returns when it is ready."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from services.cli.child import StartError
from services.cli.local_cell import baton_command
from services.cli.run_file import runtime_folder


def start_detached(command_line: Sequence[str], log_folder: Path | None) -> int:
    """Runs `baton up` with these flags in the background and shows its progress until ready.

    StartError, with the exit code `up` ended with, when it does not become ready.
    """
    flags = [flag for flag in command_line if flag != "--detach"]
    if log_folder is None:
        log_folder = Path(tempfile.mkdtemp(prefix="log-", dir=runtime_folder()))
        flags += ["--log-dir", str(log_folder)]
    log_folder.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    with (log_folder / "up.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 our own command line again
            [*baton_command(), "up", *flags, "--notify-fd", str(writing)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writing],
            start_new_session=True,
        )
    os.close(writing)
    try:
        return _follow(reading, log_folder)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _follow(reading: int, log_folder: Path) -> int:
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            word, _, text = line.rstrip("\n").partition(" ")
            if word == "say":
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()
            elif word == "ready":
                sys.stdout.write(f"logs are in {log_folder}; stop it with `baton down`\n")
                return 0
            elif word == "error":
                code, _, message = text.partition(" ")
                raise StartError(message, int(code))
    raise StartError(f"`baton up` ended before it was ready; see {log_folder}/up.log", 1)
