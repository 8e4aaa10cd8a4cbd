"""Where a running `baton up` can be found: one small file per port in a private folder.

A file names a process by pid and start time, so a pid that was given to another program is
never signalled. It holds the cell's secrets, as the environment of its processes does: only their
user can read either.
"""

import contextlib
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shared.errors import BatonError
from shared.runtime_folder import runtime_folder


@dataclass(frozen=True)
class RunRecord:
    """One running `baton up`."""

    port: int
    url: str
    pid: int
    start_ticks: int
    """when the process started, in the kernel's clock ticks since boot"""
    log_folder: str = ""
    """empty: it logs to its terminal"""
    admin_url: str = ""
    redis: str = ""
    """URL, with the password"""
    cell_secret: str = ""

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks

    def uses(self, port: int) -> bool:
        """Whether its gateway listens there."""
        return port != 0 and port in (self.port, urlsplit(self.admin_url).port)


def start_ticks(pid: int) -> int | None:
    """None when no such process runs (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def write_record(
    folder: Path, port: int, url: str, log_folder: Path | None = None, **ways_in: str
) -> RunRecord:
    """Says that this process is the `baton up` on `port`. `ways_in`: the last fields of the
    record, for whoever looks into the cell."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    logs = "" if log_folder is None else str(log_folder.resolve())
    record = RunRecord(port, url, os.getpid(), ticks, logs, **ways_in)
    path = _path(folder, port)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(asdict(record)), encoding="utf-8")
    draft.replace(path)
    return record


def remove_record(folder: Path, record: RunRecord) -> None:
    if read_record(folder, record.port) == record:
        _path(folder, record.port).unlink(missing_ok=True)


def read_record(folder: Path, port: int) -> RunRecord | None:
    try:
        return RunRecord(**json.loads(_path(folder, port).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def live_records(folder: Path) -> list[RunRecord]:
    """Every running `baton up` of this user, by port; files of dead ones are removed."""
    records = []
    for path in folder.glob("up-*.json"):
        port = path.stem.removeprefix("up-")
        record = read_record(folder, int(port)) if port.isdigit() else None
        if record is not None and record.alive:
            records.append(record)
        else:
            path.unlink(missing_ok=True)
    return sorted(records, key=lambda record: record.port)


def records_here() -> list[RunRecord]:
    """The live records of this user; where no folder for them can be, nothing runs."""
    try:
        return live_records(runtime_folder())
    except BatonError:
        return []


def admin_url_here(url: str) -> str:
    """Of the cell that `baton up` runs here and whose clients come to `url`; '' where none does."""
    named = urlsplit(url)
    for record in records_here():
        names = (urlsplit(record.url).hostname, "localhost")
        if named.port == record.port and named.hostname in names:
            return record.admin_url
    return ""


def terminate(record: RunRecord) -> int | None:
    """SIGTERM to exactly that process; a pidfd that becomes readable when it ends.

    None when it had ended already.
    """
    try:
        pidfd = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    if not record.alive:  # the pidfd pins the process, so this answer stays true
        os.close(pidfd)
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    return pidfd


def _path(folder: Path, port: int) -> Path:
    return folder / f"up-{port}.json"
