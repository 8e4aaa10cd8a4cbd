"""How far a list of prompts is, as one line of the error output that the next replaces."""

import sys
import time

EVERY_S = 0.2
BAR_CHARS = 20
_CLEAR = "\r\x1b[K"


class Progress:
    """Prompts done and tokens a second. Nothing is written where it is not wanted."""

    def __init__(self, num_prompts: int, wanted: bool | None) -> None:
        """`wanted`: None where the error output is a terminal."""
        self._num_prompts = num_prompts
        self._shown = sys.stderr.isatty() if wanted is None else wanted
        self._start_s = self._last_s = time.monotonic()

    @property
    def due(self) -> bool:
        """Somebody looks, and the line is EVERY_S old."""
        return self._shown and time.monotonic() - self._last_s >= EVERY_S

    def show(self, num_done: int, num_tokens: int) -> None:
        self._last_s = time.monotonic()
        self._write(_CLEAR + self._line(num_done, num_tokens, self._last_s))

    def end(self, num_done: int, num_tokens: int) -> None:
        """The last line stays."""
        if self._shown:
            line = self._line(num_done, num_tokens, time.monotonic())
            self._write(f"{_CLEAR}{line}\n")

    def _line(self, num_done: int, num_tokens: int, now_s: float) -> str:
        filled = BAR_CHARS * num_done // max(1, self._num_prompts)
        bar = "#" * filled + "-" * (BAR_CHARS - filled)
        rate = num_tokens / max(1e-9, now_s - self._start_s)
        return f"[{bar}] {num_done}/{self._num_prompts} prompts, {rate:.0f} tokens/s"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
