"""Log lines of a process: to standard error, never with a prompt, a token or a key in them.

Nobody waits for standard error: see `shared.line_queue`.
"""

import logging
import sys

from shared.line_queue import LineQueue, stream_writer

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _ToQueue(logging.Handler):
    def __init__(self, lines: LineQueue) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put(self.format(record))
        except Exception:  # noqa: BLE001 -- a line that cannot be formatted stops nothing
            self._lines.num_dropped += 1

    def flush(self) -> None:
        """For `logging.shutdown` of a process that ends at once."""
        self._lines.flush()


_queues: list[LineQueue] = []


def configure_logs(level: str) -> None:
    """Once, at the start of a process; `level` as in the settings."""
    lines = LineQueue(stream_writer(sys.stderr))
    _queues.append(lines)
    logging.basicConfig(level=level.upper(), format=FORMAT, handlers=[_ToQueue(lines)])


def num_dropped_lines() -> int:
    """Log lines of this process that were not written."""
    return sum(lines.num_dropped for lines in _queues)
