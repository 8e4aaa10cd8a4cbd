"""Followers as rank 0 treats them; processes that do nothing stand for them."""

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.engine.rank_processes import followers as module
from shared.engine.rank_processes.follower import say
from shared.engine.rank_processes.followers import Followers
from tests.support.measured import Measured

pytestmark = pytest.mark.clock

DEAF = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Followers]:
    """Seven that do not leave when they are told to."""
    monkeypatch.setattr(module, "COMMAND", DEAF)
    monkeypatch.setattr(module, "NOTICE_S", 0.1)
    monkeypatch.setattr(module, "STOP_S", 0.5)
    followers = Followers(8, {}, ["m", "m", "stored"])
    yield followers
    followers.close()


def test_all_together_have_the_seconds_to_end(deaf: Followers, measured: Measured) -> None:
    start_s = time.monotonic()
    deaf.close()
    measured.at_most("seven ended after", time.monotonic() - start_s, 3 * module.STOP_S, "s")


def test_an_error_of_rank_0s_own_is_no_lost_rank(deaf: Followers) -> None:
    with pytest.raises(OSError, match="No space left"), deaf.explained():
        raise OSError(28, "No space left on device")
    assert deaf.broken


def test_left_amid_a_step_they_are_not_waited_for(deaf: Followers, measured: Measured) -> None:
    """They wait for rank 0 in a sum, and would for minutes."""
    with pytest.raises(KeyboardInterrupt), deaf.explained():
        raise KeyboardInterrupt
    assert deaf.broken
    start_s = time.monotonic()
    deaf.close()
    measured.at_most("seven ended after", time.monotonic() - start_s, module.STOP_S, "s")


def test_last_words_that_nobody_hears_are_no_error() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        say(theirs, "rank 1 has a problem")


def test_they_meet_in_one_file_in_memory(deaf: Followers) -> None:
    theirs = [
        Path(f"/proc/{process.pid}/fd/{deaf.meeting.name}").stat().st_ino
        for process in deaf._processes
    ]
    assert set(theirs) == {deaf.meeting.stat().st_ino}
