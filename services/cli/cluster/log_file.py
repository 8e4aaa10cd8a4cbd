"""A process's log on disk, of a bounded size."""

from pathlib import Path

MAX_BYTES = 16 * 2**20


class LogFile:
    """Appends lines to `path`; a full file becomes `path`.1, in place of the one before it."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def write(self, line: str) -> None:
        """OSError when there is no room. The file is opened for each line: it may be moved or
        removed, and the disk may have room again."""
        with self._path.open("ab", buffering=0) as file:
            rest = memoryview(f"{line}\n".encode(errors="replace"))
            if file.tell() + len(rest) > self._max_bytes and file.tell():
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self.write(line)
                return
            while rest:
                rest = rest[file.write(rest) :]
