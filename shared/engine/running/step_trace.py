"""A torch trace of a worker's next steps, for whoever asks why they take as long as they do.

    kill -USR2 PID        of the worker, as `baton status --json` says it
    -> the log names a file that https://ui.perfetto.dev opens: kernels, the host's work, waits

The steps that are traced take longer, and the loop stands still for a second when the file is
written. Of several ranks the first is traced.
"""

import logging
import os
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, supported_activities

logger = logging.getLogger(__name__)
NUM_STEPS = 20


class StepTrace:
    """Called by the step loop around each step."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where files go."""
        self._folder = folder
        self._num_written = 0
        self._num_left = 0
        self._profile: profile | None = None

    def ask(self) -> None:
        """For the next NUM_STEPS steps; nothing happens while some are traced."""
        self._num_left = self._num_left or NUM_STEPS

    def begin_step(self) -> None:
        """A step is about to be decided."""
        if self._num_left and self._profile is None:
            wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & supported_activities()
            begun = profile(activities=sorted(wanted, key=str))
            try:
                begun.start()
            except RuntimeError as error:
                self._num_left = 0
                logger.error("no trace of steps: %s", error)
            else:
                self._profile = begun

    def end_step(self) -> None:
        """It was launched, and the one before it is booked."""
        if self._profile is None:
            return
        self._num_left -= 1
        if not self._num_left:
            ended, self._profile = self._profile, None
            self._write(ended)

    def _write(self, ended: profile) -> None:
        """A trace that cannot be written costs nobody his answer."""
        self._num_written += 1
        path = self._folder / f"baton-trace-{os.getpid()}-{self._num_written}.json.gz"
        try:
            ended.stop()
            ended.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            logger.error("no trace of steps: %s", error)
        else:
            logger.info("a trace of %d steps: %s", NUM_STEPS, path)
