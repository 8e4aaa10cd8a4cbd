"""`baton up --detach`: the same `up` in a session of its own; returns when it is ready."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from services.cli.cluster.child import StartError
from services.cli.cluster.local_cell import baton_command
from services.cli.cluster.run_file import live_records
from shared.runtime_folder import runtime_folder

LOG_PREFIX = "log-"
NUM_KEPT_LOGS = 3
"""log folders of systems that are gone"""


def start_detached(command_line: Sequence[str], log_folder: Path | None) -> int:
    """Runs `baton up` with these flags in the background and shows its progress until ready.

    StartError, with the exit code `up` ended with, when it does not become ready.
    """
    flags = [flag for flag in command_line if flag != "--detach"]
    if log_folder is None:
        remove_old_logs(runtime_folder())
        log_folder = Path(tempfile.mkdtemp(prefix=LOG_PREFIX, dir=runtime_folder()))
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


def remove_old_logs(folder: Path) -> None:
    """Removes the log folders made here, but for those in use and the last few."""
    used = {record.log_folder for record in live_records(folder)}
    gone = [path for path in folder.glob(f"{LOG_PREFIX}*") if str(path.resolve()) not in used]
    gone.sort(key=lambda path: path.stat().st_mtime_ns)
    for path in gone[:-NUM_KEPT_LOGS]:
        shutil.rmtree(path, ignore_errors=True)


def _follow(reading: int, log_folder: Path) -> int:
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            word, _, text = line.rstrip("\n").partition(" ")
            if word == "say":
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()
            elif word == "ready":
                stop = f"stop it with `baton down --port {text}`"
                sys.stdout.write(f"logs are in {log_folder}; {stop}\n")
                return 0
            elif word == "error":
                code, _, message = text.partition(" ")
                raise StartError(message, int(code))
    raise StartError(f"`baton up` ended before it was ready; see {log_folder}/up.log", 1)
