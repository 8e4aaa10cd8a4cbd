"""Ranks 1 and up as rank 0 sees them: processes it started, tells what to run, and watches.

A follower that ends before rank 0 does takes the model with it. A call to the ranks may then raise
or wait forever, on the GPU too, so every follower has a thread here that waits for its end; the
error it makes of it is what the caller gets, or, if the caller is stuck, what `on_lost` does.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shared.engine.loading.memory_exchange import give_memory
from shared.engine.loading.pool_access import PoolAccess
from shared.engine.parallel.distributed import PRIVATE
from shared.engine.rank_processes.plan_channel import send_meeting, send_plan
from shared.engine.scheduling.batch import HostBatch
from shared.errors import BatonError
from shared.settings.setting import PREFIX

logger = logging.getLogger(__name__)

NOTICE_S = 2.0
"""how long an error waits for the end of a process that would explain it"""
GRACE_S = 3.0
"""how long whoever uses the ranks has to notice a loss, before `on_lost`"""
STOP_S = 5.0
"""how long followers have, together, to end by themselves"""
MAX_WORDS = 2**12
NO_MOVER = -1
COMMAND = (sys.executable, "-m", "shared.engine.rank_processes.follower")


class RankLostError(BatonError):
    """A rank ended while others needed it."""

    def __init__(self, message: str, status: int = 1) -> None:
        """`status`: of its process, as `subprocess` gives it."""
        super().__init__(message)
        self.status = status


def end_process(error: RankLostError) -> None:
    """Say why and end: whoever waits for the lost rank cannot be woken. A rank that was killed
    takes this process with it by the same signal, so that its worker is told from one that failed
    by itself."""
    logger.critical("%s", error)
    logging.shutdown()
    if error.status == -signal.SIGKILL:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(error.exit_code)


class Followers:
    """Started at once; each ends with this process, whatever ends it."""

    def __init__(
        self,
        size: int,
        settings: Mapping[str, str],
        model: list[str],
        access: PoolAccess | None = None,
    ) -> None:
        """`size`: how many ranks there are, with rank 0. `settings`: variables the others load
        theirs from. `model`: what shared.engine.rank_processes.follower takes after its place
        among the ranks. `access`: its sockets are theirs from now on."""
        access = access or PoolAccess()
        self.on_lost: Callable[[RankLostError], None] = end_process
        """called by a thread, GRACE_S after a loss that `explained` did not report"""
        self._meeting = os.memfd_create("baton-ranks")
        """never closed: torch looks at it once more when the process ends"""
        self._sockets: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lost: list[RankLostError] = []
        self._abandoned = False
        """they may wait for rank 0, amid a step"""
        self._noticed = threading.Event()
        self._settled = threading.Event()
        """somebody reported the loss, or there will be none"""
        for rank in range(1, size):
            ours, theirs = socket.socketpair()
            with theirs:
                mover_fds = access.mover_fds[rank - 1 : rank]
                mover_fd = mover_fds[0] if mover_fds else NO_MOVER
                place = [theirs.fileno(), mover_fd, rank, size, os.getpid(), self.meeting]
                process = subprocess.Popen(  # noqa: S603
                    [*COMMAND, *map(str, place), access.kind, *model],
                    pass_fds=[theirs.fileno(), self._meeting, *mover_fds],
                    process_group=0,  # Ctrl-C is rank 0's, which ends the others
                    env=_environment(settings),
                )
            self._sockets.append(ours)
            self._processes.append(process)
            threading.Thread(
                target=self._watch, args=(rank, process, ours), daemon=True, name=f"rank {rank}"
            ).start()
        access.close()

    @property
    def meeting(self) -> Path:
        """Where the ranks find each other: a file in memory, here and in every follower."""
        return Path(f"/proc/self/fd/{self._meeting}")

    @property
    def broken(self) -> bool:
        """One ended that was needed, or they were left amid a step: leaving the ranks would wait
        forever."""
        return self._abandoned or bool(self._lost)

    def send(self, batch: HostBatch) -> None:
        """Have every follower run this batch."""
        send_plan(self._sockets, batch)

    def call(self) -> None:
        """Have every follower meet the others, with nothing to run."""
        send_meeting(self._sockets)

    def give_memory(self, fd: int) -> tuple[int, ...] | None:
        """See shared.engine.loading.memory_exchange."""
        return give_memory(self._sockets, fd)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """RankLostError instead of what a call to the ranks raises because one has ended."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            if not self._noticed.wait(NOTICE_S):
                if not isinstance(error, ConnectionError):
                    self._abandoned = True
                    raise
                # Its end of the channel is closed, though its process has not ended yet.
                self._lost.append(RankLostError(f"a rank does not listen any more: {error}"))
            self._settled.set()
            raise self._lost[0] from None
        except BaseException:
            self._abandoned = True
            raise

    def dismiss(self) -> None:
        """Have them leave the group, once they have run what they were told to."""
        self._settled.set()
        for sock in self._sockets:
            sock.close()

    def close(self) -> None:
        """Wait for their end, some seconds at most; not at all if they would wait for us."""
        self.dismiss()
        deadline_s = time.monotonic() + STOP_S * (not self._abandoned)
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self, rank: int, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        status = process.wait()
        if self._settled.is_set():
            return
        how = f"ended with status {status}"
        if status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        words = _last_words(ours)
        self._lost.append(RankLostError(f"rank {rank} (pid {process.pid}) {how}{words}", status))
        self._noticed.set()
        if not self._settled.wait(GRACE_S):
            self.on_lost(self._lost[0])


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's, with these settings only."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**kept, **settings, **PRIVATE}


def _last_words(sock: socket.socket) -> str:
    """What a follower wrote before it ended."""
    try:
        text = sock.recv(MAX_WORDS, socket.MSG_DONTWAIT).decode(errors="replace")
    except OSError:
        return ""
    return f": {text}" if text else ""
