"""A SIGKILL is somebody else's doing only if the kernel says that it was not its OOM killer."""

import signal
from pathlib import Path

import pytest

from shared.worker.outside_kill import count_oom_kills, is_outside_kill


@pytest.mark.parametrize(
    ("status", "before", "after", "outside"),
    [
        (-signal.SIGKILL, 3, 3, True),
        (-signal.SIGKILL, 3, 4, False),
        (-signal.SIGKILL, None, None, False),
        (-signal.SIGSEGV, 3, 3, False),
        (-signal.SIGABRT, 3, 3, False),
        (1, 3, 3, False),
    ],
)
def test_what_counts_as_a_kill_from_outside(
    status: int, before: int | None, after: int | None, outside: bool
) -> None:
    assert is_outside_kill(status, before, after) is outside


def test_the_kernels_count_is_read_where_there_is_one(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    assert count_oom_kills(vmstat) is None
    vmstat.write_text("nr_free_pages 7\n")
    assert count_oom_kills(vmstat) is None
    vmstat.write_text("nr_free_pages 7\noom_kill 12\npgfault 3\n")
    assert count_oom_kills(vmstat) == 12
