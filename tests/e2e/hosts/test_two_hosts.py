"""Hand-overs between two hosts, over a link that is slow, far and stands still now and then.

Guards: what loopback hides, that is small windows, half-sent frames and silence in mid-frame.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.hosts.two_hosts import LINK_MBIT, NUM_REQUESTS
from tests.support.measured import Measured
from tests.support.unshared import unshared

LEAST_MOVED_BYTES = 40e6


@pytest.mark.redis
@pytest.mark.needs_hosts
def test_nothing_is_lost_or_wrong_over_a_bad_link(tmp_path: Path, measured: Measured) -> None:
    script = [sys.executable, "-m", "tests.e2e.hosts.two_hosts", str(tmp_path)]
    with subprocess.Popen(  # noqa: S603
        unshared("net", script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            said, errors = running.communicate(timeout=280)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, errors[-3000:]
    found = json.loads(said.splitlines()[-1])
    assert found["failed"] == []
    assert found["wrong"] == 0
    assert found["local"] == {}
    measured.at_least("stalls of 0.2 s", found["stalls"], 3)
    measured.at_least("bytes handed over", found["num_bytes"], LEAST_MOVED_BYTES)
    rate = 8e-6 * found["num_bytes"] / found["seconds"]
    measured.note(f"goodput: {rate:.0f} of {LINK_MBIT} Mbit/s, {NUM_REQUESTS} prompts")
