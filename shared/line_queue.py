"""Lines on their way out: never waited for, limited in number, and none lost unnoticed.

A pipe nobody reads, a terminal in Ctrl-S and a full disk stop the thread that writes, and nobody
else. What finds no room, or cannot be written, is counted; the count is written when there is
room again.
"""

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TextIO

MAX_LINES = 10_000
CLOSE_LIMIT_S = 0.5
"""an exit waits so long for a writer that cannot write"""

Write = Callable[[str], None]


class LineQueue:
    """Hands lines to `write`, in order, on a thread of its own; what the process wrote last is
    out when it ends."""

    def __init__(self, write: Write, max_lines: int = MAX_LINES) -> None:
        """`write` takes a line without its newline; OSError when it cannot be written."""
        self.num_dropped = 0
        self._write = write
        self._num_told = 0
        self._lines: queue.Queue[str] = queue.Queue(max_lines)
        self._thread = threading.Thread(target=self._work, name="lines", daemon=True)
        self._thread.start()
        atexit.register(self.flush)

    def put(self, line: str) -> None:
        """Never blocks."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.num_dropped += 1

    def flush(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Wait until all is written, at most so long."""
        end_s = time.monotonic() + limit_s
        with self._lines.all_tasks_done:
            while self._lines.unfinished_tasks and time.monotonic() < end_s:
                self._lines.all_tasks_done.wait(end_s - time.monotonic())

    def _work(self) -> None:
        while True:
            line = self._lines.get()
            self._try_write(line)
            self._lines.task_done()

    def _try_write(self, line: str) -> None:
        num_dropped = self.num_dropped
        try:
            if num_dropped > self._num_told:
                self._write(f"{num_dropped - self._num_told} lines could not be written")
                self._num_told = num_dropped
            self._write(line)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.num_dropped += 1


def stream_writer(stream: TextIO) -> Write:
    """Writes to what lies below a stream: a buffer whose flush hangs would hold up the exit."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        fd = None

    def write(line: str) -> None:
        if fd is None:  # a stream in memory
            stream.write(f"{line}\n")
            return
        rest = f"{line}\n".encode(errors="replace")
        while rest:
            rest = rest[os.write(fd, rest) :]

    return write
