"""How far a batch is and how long it will take, for a person or for a log."""

import sys
import time

from services.cli.batch.batch import Batch
from services.cli.bench.measure import progress_line

SHOW_EVERY_S = 0.5
LOG_EVERY_S = 30.0


class BatchProgress:
    """Looks at a batch now and then."""

    def __init__(self, batch: Batch, num_before: int) -> None:
        """`num_before`: lines that earlier runs answered."""
        self._batch = batch
        self._num_before = num_before
        self._start_s = self._shown_s = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def begin(self) -> None:
        """What earlier runs did."""
        if self._num_before:
            num_waiting = self._batch.num_waiting
            progress_line.keep(f"{self._num_before} lines are answered already, {num_waiting} wait")

    def look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < (SHOW_EVERY_S if self._on_terminal else LOG_EVERY_S):
            return
        self._shown_s = now_s
        text = self.text(now_s - self._start_s)
        if self._on_terminal:
            progress_line.show(text)
        else:
            progress_line.keep(text)

    def end(self) -> None:
        """The last word."""
        progress_line.keep(self.text(time.monotonic() - self._start_s))

    def text(self, elapsed_s: float) -> str:
        """`120/500 lines answered, 2 of them with an error, 35.0 a second, about 11 s left`"""
        batch = self._batch
        done, left = batch.num_answered, batch.num_waiting - batch.num_answered
        parts = [f"{self._num_before + done}/{self._num_before + batch.num_waiting} lines answered"]
        if batch.num_failed:
            parts.append(f"{batch.num_failed} of them with an error")
        rate = done / elapsed_s if elapsed_s > 0 else 0.0
        if rate > 0:
            parts.append(f"{rate:.1f} a second")
        if rate > 0 and left:
            parts.append(f"about {left / rate:.0f} s left")
        return ", ".join(parts)
