"""Whether a process was ended by somebody else, as an operator or a node's eviction does it.

The kernel's OOM killer sends the same SIGKILL, but there the cause may be what the process ran. It
counts what it kills, for all control groups of the machine, before it does so.
"""

import signal
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""no process sends itself these; a service manager sends them to a whole group"""


def count_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Processes that the kernel has killed for lack of memory; None where it does not say."""
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None


def is_outside_kill(status: int, num_before: int | None, num_after: int | None) -> bool:
    """`status` as `subprocess` gives it; the OOM kills counted shortly before and after the end.
    In doubt it was none."""
    if -status in ASKED:
        return True
    known = num_before is not None and num_before == num_after
    return status == -signal.SIGKILL and known
