"""A link between two GPUs, by a communicator of NCCL for this pair alone.

NCCL finds the way by itself: InfiniBand, RoCE, sockets, NVLink. Its calls return at once, and what
they began is looked at until it has ended, so that a peer that died or stands still costs the link
and nothing else.
"""

import ctypes
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress

import torch

from shared.mover.copies import CopyError
from shared.mover.links.limits import MEET_S, MOVE_S
from shared.mover.links.link import End
from shared.mover.links.nccl_library import (
    ID_BYTES,
    IN_PROGRESS,
    INT8,
    Config,
    UniqueId,
    check,
    library,
    version,
)

logger = logging.getLogger(__name__)

MAX_CTAS = 4
"""thread blocks that wait for the wire and move bytes; an H100 runs 132 of that size at once"""
LET_GO_S = 2.0
POLL_S = 5e-5
SETTINGS = {"NCCL_NVLS_ENABLE": "0"}
"""where the environment says nothing: two ranks have no use for multicast"""


class NcclLink:
    """Keeps the promise of `Link`."""

    def __init__(self, end: End, host: str, device: torch.device) -> None:
        """NCCL chooses its interfaces itself, whatever `host` is."""
        del host
        self._device = device
        self._rank = 0 if end == "gives" else 1
        self._is_aborted = False
        self._has_met = False
        self._comm = ctypes.c_void_p()
        self._id = UniqueId()
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        if end == "gives":
            check(library().ncclGetUniqueId(ctypes.byref(self._id)))
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(priority=-1)  # the other end waits, steps do not
            self._done = torch.cuda.Event()

    def card(self) -> bytes:
        return bytes(self._id)

    def meet(self, card: bytes) -> None:
        if len(card) != ID_BYTES:
            raise CopyError("the other end's card is none of NCCL's")
        if self._rank:
            self._id = UniqueId.from_buffer_copy(card)
        if self._comm:
            raise CopyError("the two ends have met already")
        torch.cuda.set_device(self._device)
        free_bytes, _ = torch.cuda.mem_get_info()
        self._begin(2, MEET_S)
        self._has_met = True
        taken = (free_bytes - torch.cuda.mem_get_info()[0]) / 2**20
        logger.info("NCCL %s links two workers; it takes %.0f MiB of GPU memory", version(), taken)

    def send(self, rows: torch.Tensor) -> None:
        self._move(library().ncclSend, rows)

    def receive(self, rows: torch.Tensor) -> None:
        self._move(library().ncclRecv, rows)

    def abort(self) -> None:
        self._is_aborted = True

    def close(self) -> None:
        """What was begun is aborted, not destroyed: that would wait for the other end. An end that
        gives and was never met takes a second."""
        self._end()
        if self._rank == 0 and not self._has_met:
            self._let_go()

    def _begin(self, num_ranks: int, limit_s: float) -> None:
        """A communicator of `num_ranks`."""
        config = Config.non_blocking(MAX_CTAS)
        comm, how = ctypes.byref(self._comm), ctypes.byref(config)
        check(library().ncclCommInitRankConfig(comm, num_ranks, self._id, self._rank, how))
        self._until(lambda: True, limit_s)

    def _end(self) -> None:
        comm, self._comm = self._comm, ctypes.c_void_p()
        if comm:
            library().ncclCommAbort(comm)

    def _let_go(self) -> None:
        """For each id that it makes NCCL has a thread and a socket that wait until all ends have
        come. They go when a communicator of one end comes, whether two were awaited or none."""
        self._is_aborted = False
        try:
            with suppress(CopyError):
                torch.cuda.set_device(self._device)
                self._begin(1, LET_GO_S)
        finally:
            self._end()

    def _move(self, function: Callable[..., int], rows: torch.Tensor) -> None:
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        peer, size = 1 - self._rank, rows.numel()
        check(function(rows.data_ptr(), size, INT8, peer, self._comm, stream), self._comm)
        self._until(lambda: True, MOVE_S)  # only then is it on the stream
        self._done.record(self._stream)
        self._until(self._done.query, MOVE_S)

    def _until(self, is_done: Callable[[], bool], limit_s: float) -> None:
        """The last call has begun, and this is true."""
        until_s = time.monotonic() + limit_s
        status = ctypes.c_int()
        while True:
            check(library().ncclCommGetAsyncError(self._comm, ctypes.byref(status)), self._comm)
            if check(status.value, self._comm) != IN_PROGRESS and is_done():
                return
            if self._is_aborted or time.monotonic() > until_s:
                raise CopyError("the other end of the link does not answer")
            time.sleep(POLL_S)
