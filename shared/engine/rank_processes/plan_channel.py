"""One step's plan from rank 0 to the others: the host form of its batch, over a socket pair.

A message is six i32 in the machine's order, the batch's shape and a number of int32, and then those
numbers (`HostBatch.numbers`); or a header of zeros, for the ranks to meet with nothing to run. Both
ends are processes of one machine and of one release.
"""

import socket
import struct
from collections.abc import Sequence

import numpy as np

from shared.engine.scheduling.batch import BatchShape, HostBatch, may_have
from shared.errors import ProtocolError

_HEADER = struct.Struct("=6i")
MAX_NUMBERS = 2**28


def send_plan(sockets: Sequence[socket.socket], batch: HostBatch) -> None:
    """To every follower. OSError if one has ended."""
    numbers = batch.numbers
    head = _HEADER.pack(*batch.shape, numbers.shape[0])
    body = np.ascontiguousarray(numbers).data
    for sock in sockets:
        num_sent = sock.sendmsg((head, body))
        if num_sent < len(head):
            sock.sendall(head[num_sent:])
            num_sent = len(head)
        if num_sent < len(head) + body.nbytes:
            sock.sendall(body.cast("B")[num_sent - len(head) :])


def send_meeting(sockets: Sequence[socket.socket]) -> None:
    """To every follower. OSError if one has ended."""
    for sock in sockets:
        sock.sendall(bytes(_HEADER.size))


def receive_plan(sock: socket.socket) -> HostBatch | None:
    """The next plan, None to meet; waits for it. EOFError once rank 0 has closed its end or is
    gone."""
    *counts, length = _HEADER.unpack(_receive(sock, _HEADER.size))
    if not any((*counts, length)):
        return None
    shape = BatchShape(*counts)
    if length > MAX_NUMBERS or not may_have(shape, length):
        raise ProtocolError(f"a plan of {length} numbers says its shape is {tuple(shape)}")
    return HostBatch.of_numbers(shape, np.frombuffer(_receive(sock, 4 * length), dtype=np.int32))


def _receive(sock: socket.socket, length: int) -> bytearray:
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view.nbytes:
        num_received = sock.recv_into(view)
        if not num_received:
            raise EOFError("rank 0 closed the channel")
        view = view[num_received:]
    return buffer
