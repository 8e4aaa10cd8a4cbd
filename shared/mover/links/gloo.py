"""A link between two CPUs, by gloo: the code of NCCL's, where there is no GPU.

Gloo's ends meet through a store. Each puts a word of itself there and waits for the other's, so the
two words are all there ever is in it. Gloo reads them as they come, so what a link tells the other
end is only the address in its word, of fixed length, and the rest is its own:

    word   length of the host's name | name | length of an address | address | two numbers
"""

import struct
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from shared.mover.copies import CopyError
from shared.mover.links.limits import MEET_S, MOVE_S
from shared.mover.links.link import End

TAG = 0
Gloo: Any = dist.ProcessGroupGloo
"""of which torch's stubs say little"""


SIZE = struct.Struct("=Q")
NUMBERS_BYTES = 16


class _Words(dist.Store):  # type: ignore[name-defined,misc]
    """A store for two ends that hand each other's word over by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._is_closed = False

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def value(self, key: str) -> bytes:
        """Once it is there. TimeoutError if it does not come."""
        with self._changed:
            there = self._changed.wait_for(lambda: key in self._values or self._is_closed, MEET_S)
            if not there or key not in self._values:
                raise TimeoutError("the other end of the link did not come")
            return self._values[key]

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # By these names gloo calls them.

    def set(self, key: str, value: bytes) -> None:
        self.put(key, bytes(value))

    def get(self, key: str) -> bytes:
        return self.value(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.value(key)


class GlooLink:
    """Keeps the promise of `Link`."""

    def __init__(self, end: End, host: str, device: torch.device) -> None:
        del device
        self._rank = 0 if end == "gives" else 1
        self._host = host
        self._words = _Words()
        self._group: Any = None
        self._is_aborted = False
        self._problem = "the other end of the link did not come"
        self._meeting = threading.Thread(target=self._meet, name="kv-meet", daemon=True)
        self._meeting.start()

    def card(self) -> bytes:
        word = self._own_word()
        return word[_address_in(word)]

    def meet(self, card: bytes) -> None:
        if self._group is not None:
            raise CopyError("the two ends have met already")
        word = self._own_word()
        address = _address_in(word)
        if len(card) != address.stop - address.start:
            raise CopyError("the other end's card is none of gloo's")
        theirs = word[: address.start] + card + word[address.stop :]
        self._words.put(_key(1 - self._rank), theirs)
        self._meeting.join()
        if self._group is None:
            raise CopyError(self._problem)

    def send(self, rows: torch.Tensor) -> None:
        self._move(lambda group: group.send([rows], 1 - self._rank, TAG))

    def receive(self, rows: torch.Tensor) -> None:
        self._move(lambda group: group.recv([rows], 1 - self._rank, TAG))

    def abort(self) -> None:
        self._is_aborted = True
        self._words.close()

    def close(self) -> None:
        self.abort()
        self._group = None

    def _own_word(self) -> bytes:
        try:
            return self._words.value(_key(self._rank))
        except TimeoutError:
            raise CopyError(self._problem) from None

    def _meet(self) -> None:
        options = Gloo._Options()
        options._timeout = timedelta(seconds=MEET_S)
        options._threads = 1
        try:
            options._devices = [Gloo.create_device(hostname=self._host)]
            self._group = Gloo(self._words, self._rank, 2, options)
        except (RuntimeError, TimeoutError, ValueError) as error:
            self._problem = _said(error)
            self._words.close()

    def _move(self, begin: Callable[[Any], dist.Work]) -> None:
        """A peer that dies ends it at once, one that stands still at the limit: nothing else ends
        a wait of gloo's."""
        try:
            if self._group is None or self._is_aborted:
                raise CopyError(self._problem)
            begin(self._group).wait(timedelta(seconds=MOVE_S))
        except RuntimeError as error:
            raise CopyError(_said(error)) from None


def _key(rank: int) -> str:
    """Of the one word that an end puts into a store: device 0, then the rank."""
    return f"0/{rank}"


def _address_in(word: bytes) -> slice:
    """Where it lies. CopyError if this gloo says something else."""
    try:
        start = 2 * SIZE.size + SIZE.unpack_from(word)[0]
        (num_bytes,) = SIZE.unpack_from(word, start - SIZE.size)
    except struct.error:
        start = num_bytes = 0
    if not num_bytes or start + num_bytes + NUMBERS_BYTES != len(word):
        raise CopyError("this gloo tells its address in a way that is not known here")
    return slice(start, start + num_bytes)


def _said(error: Exception) -> str:
    """What gloo says of it, without its place in gloo and its advice."""
    text = str(error)
    return f"gloo: {text.rpartition('] ')[2].partition('. ')[0] or text}"
