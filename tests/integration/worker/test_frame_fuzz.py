"""Frames that no gateway sends, in a process whose memory they could fill."""

import subprocess
import sys

from tests.support.pairs.worker_process import ROOT


def test_what_strangers_frames_cost_is_bounded() -> None:
    """The short form of `python -m tests.support.frame_fuzz`, which decodes 1,000,000."""
    command = [sys.executable, "-m", "tests.support.frame_fuzz", "20000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
