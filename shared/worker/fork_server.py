"""A process that has imported all that an engine needs, torch above all, and forks engines.

    asked:     one byte, with descriptors of the channel and of each mover's data socket
    answers:   the pid of the engine; once that has ended, its exit status

It runs one engine after the other. It has one thread and never touches a GPU, for neither survives
a fork. It ends with its io process, and its engine with it.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from shared.kv.share import MAX_RANKS
from shared.process import die_with_parent, freeze_heap, import_whole
from shared.worker.fork_client import ANSWER
from shared.worker.identity import WorkerRole

logger = logging.getLogger(__name__)

RunEngine = Callable[[WorkerRole, socket.socket, Sequence[socket.socket]], int]


def main(arguments: Sequence[str]) -> int:
    """`fork_server SOCKET_FD ROLE PARENT_PID`: exit status, in a forked process the engine's."""
    asked_fd, name, parent_pid = arguments
    assert name in ("prefill", "decode")
    role: WorkerRole = "prefill" if name == "prefill" else "decode"
    asked = socket.socket(fileno=int(asked_fd))
    die_with_parent(int(parent_pid))
    run_engine: RunEngine = import_whole("shared.worker.engine_process").run_engine
    freeze_heap()  # so that collections of an engine copy none of these pages
    server_pid = os.getpid()
    while True:
        question, descriptors, _, _ = socket.recv_fds(asked, 1, 1 + MAX_RANKS)
        if not question:
            return 0
        pid = fork()
        if not pid:
            asked.close()
            die_with_parent(server_pid)
            channel, *others = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            return run_engine(role, channel, others)
        for descriptor in descriptors:
            os.close(descriptor)
        asked.send(ANSWER.pack(pid))
        _, status = os.waitpid(pid, 0)
        asked.send(ANSWER.pack(os.waitstatus_to_exitcode(status)))


def fork() -> int:
    """0 in the new process, which draws other random numbers than those before it. Of other threads
    it has the locks and nothing else. Nothing that is imported here starts one; what somebody
    preloads may, and its own have to be prepared for forks."""
    num_threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if num_threads > 1:
        logger.warning("%d threads run where an engine is forked: it may hang", num_threads)
    import numpy as np  # noqa: PLC0415  (these two are there: the engine's imports come first)
    import torch  # noqa: PLC0415

    pid = os.fork()
    if not pid:  # Python's own generator sees to itself
        torch.seed()
        np.random.seed()
    return pid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
