"""Where `baton up` writes: progress to the terminal, each process's log to its own place."""

import os
import sys
from collections import deque
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from services.cli.cluster.log_file import LogFile
from shared.errors import SettingsError
from shared.line_queue import LineQueue, Write, stream_writer

ERROR_MARK = "baton: error: "
KEPT_LINES = 50


class Output:
    """Progress lines, and the lines its processes wrote.

    With a log folder each process has a file there. Without one, lines go to the terminal
    behind the process's name, unless `quiet`. Nobody waits for a terminal, a pipe or a disk: what
    they do not take is dropped.
    """

    def __init__(
        self,
        *,
        log_folder: Path | None = None,
        quiet: bool = False,
        notify_fd: int | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._log_folder = log_folder
        self._quiet = quiet
        self._notify_fd = notify_fd
        self._terminal = LineQueue(stream_writer(stream or sys.stdout))
        self._lines: dict[str, LineQueue] = {}
        """by process; "" is the terminal's error stream"""
        if log_folder is not None:
            try:
                log_folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SettingsError(f"--log-dir {log_folder}: {error.strerror}") from error

    @property
    def log_folder(self) -> Path | None:
        return self._log_folder

    def say(self, text: str) -> None:
        """A line of progress for a person."""
        self._terminal.put(text)
        self._notify(f"say {text}")

    def ready(self, url: str, page: str = "") -> None:
        """`page`: where an operator looks."""
        self.say(f"ready {url}")
        if page:
            self.say(f"operator's page {page}")
        self._notify(f"ready {urlsplit(url).port}")
        self._close_notify()

    def failed(self, code: int, text: str) -> None:
        """Tells the process that waits for this one, if any, why it will not become ready."""
        self._notify(f"error {code} {text}")
        self._close_notify()

    def process_line(self, name: str, line: str) -> None:
        """One line that the process `name` wrote."""
        if self._log_folder is not None:
            self._queue(name).put(line)
        elif not self._quiet and not line.startswith(ERROR_MARK):
            self._queue("").put(f"{name} | {line}")

    def flush(self) -> None:
        """Wait until all is written, or for half a second."""
        for lines in (self._terminal, *self._lines.values()):
            lines.flush()

    def _queue(self, name: str) -> LineQueue:
        if name not in self._lines:
            write: Write
            if self._log_folder is not None:
                write = LogFile(self._log_folder / f"{name}.log").write
            else:
                write = stream_writer(sys.stderr)
            self._lines[name] = LineQueue(write)
        return self._lines[name]

    def _notify(self, line: str) -> None:
        if self._notify_fd is None:
            return
        try:
            os.write(self._notify_fd, f"{line}\n".encode())
        except OSError:
            self._close_notify()

    def _close_notify(self) -> None:
        if self._notify_fd is not None:
            os.close(self._notify_fd)
            self._notify_fd = None


class ProcessLines:
    """Cuts what one run of a process writes into lines and remembers why it failed."""

    def __init__(self, name: str, output: Output) -> None:
        self._name = name
        self._output = output
        self._rest = b""
        self.first_error = ""
        """what the first `baton: error:` line said"""
        self.last: deque[str] = deque(maxlen=KEPT_LINES)

    def close(self) -> None:
        """No more will come: an unfinished line is a line."""
        if self._rest:
            self.feed(b"\n")

    def feed(self, received: bytes) -> None:
        *lines, self._rest = (self._rest + received).split(b"\n")
        if len(self._rest) > 65536:
            lines, self._rest = [*lines, self._rest], b""
        for raw in lines:
            line = raw.decode("utf-8", errors="replace").rstrip()
            self.last.append(line)
            if line.startswith(ERROR_MARK) and not self.first_error:
                self.first_error = line.removeprefix(ERROR_MARK)
            self._output.process_line(self._name, line)
