"""A nixl agent: shows our pool to other workers, and reads theirs without their help.

UCX, which moves the bytes, takes what reads by itself: an RDMA device, or the kernel where the
other process runs on this host. Its emulation of such reads over plain tcp is left out: a reader
that dies there can take the process of its source with it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shared.codec import Codec
from shared.errors import ProtocolError
from shared.kv.share import MAX_RANKS
from shared.mover.copies import CopyError, Regions
from shared.mover.reads import Reads
from shared.mover.runs import Column

PACKAGE = "nixl_cu13"
MISSING = "nixl is not installed: pip install nixl-cu13"
NO_EMULATION = "PROTO_EMULATION_ENABLE=n"
END = 2**63
"""of addresses"""
MAX_DEVICES = 2**16


@dataclass(frozen=True)
class Card:
    """What a reader needs to read a pool; io processes pass it on as it is."""

    address: int
    num_bytes: int
    kind: str
    device: int
    metadata: bytes
    """of the owner's agent, as nixl has it"""

    def has(self, num_bytes: int) -> bool:
        """They are there to be read, at addresses that are some."""
        in_memory = self.address >= 0 and self.address + self.num_bytes < END
        known = self.kind in ("DRAM", "VRAM") and 0 <= self.device < MAX_DEVICES
        return in_memory and known and num_bytes <= self.num_bytes


@dataclass(frozen=True)
class Cards:
    """Of all ranks of a worker, in order, each as its agent says it."""

    ranks: tuple[bytes, ...]


CARDS = Codec((Card, Cards))


def pack_cards(cards: Sequence[bytes]) -> bytes:
    """Of a worker's ranks, in order."""
    return CARDS.encode(Cards(tuple(cards)))


def unpack_cards(packed: bytes) -> tuple[bytes, ...]:
    """CopyError for what is none of ours."""
    try:
        cards = CARDS.decode(packed)
    except ProtocolError as error:
        raise CopyError(f"the source's cards cannot be read: {error}") from None
    if not isinstance(cards, Cards) or not 0 < len(cards.ranks) <= MAX_RANKS:
        raise CopyError("the source shows no cards of its ranks")
    return cards.ranks


class Agent(Protocol):
    """Called by the mover's thread only. CopyError for what cannot be done."""

    def card(self) -> bytes:
        """How others read our pool."""

    def join(self, source: str, card: bytes, num_bytes: int) -> None:
        """Take the agent of another worker's pool, of at least `num_bytes`, into account."""

    def leave(self, source: str) -> None:
        """Forget it; no read of it is under way."""

    def begin(self, source: str, reads: Reads) -> Any:
        """Start to read; the handle of all these reads."""

    def is_done(self, handle: Any) -> bool:
        """Whether all of them have ended. CopyError once they have and one failed."""

    def progress(self) -> None:
        """Answer those who connect. Done now and then, while nothing is read."""

    def close(self) -> None:
        """Returns once nothing of what was begun touches our memory any more."""


MakeAgent = Callable[[str, Regions], Agent]


class NixlAgent:
    """Keeps the promise of `Agent`."""

    def __init__(self, name: str, regions: Regions) -> None:
        """CopyError where nixl is missing, or cannot work here."""
        if not is_installed():
            raise CopyError(MISSING)
        self._regions = regions
        self._joined: dict[str, Card] = {}
        with _told():
            with _quiet_logging():
                # A hundred libraries, which workers of one host do without.
                import nixl_cu13  # noqa: PLC0415
            config = nixl_cu13.nixl_agent_config(enable_prog_thread=False, backends=[])
            self._nixl = nixl_cu13.nixl_agent(name, config)
            self._nixl.create_backend("UCX", {"engine_config": NO_EMULATION})
            for region in (regions.pool, regions.probe_room):
                place = (region.address, region.num_bytes, regions.device, "")
                self._nixl.register_memory([place], regions.kind)

    def card(self) -> bytes:
        pool, kind, device = self._regions.pool, self._regions.kind, self._regions.device
        with _told():
            metadata = self._nixl.get_agent_metadata()
        return CARDS.encode(Card(pool.address, pool.num_bytes, kind, device, metadata))

    def join(self, source: str, card: bytes, num_bytes: int) -> None:
        try:
            theirs = CARDS.decode(card)
        except ProtocolError as error:
            raise CopyError(f"the source's card cannot be read: {error}") from None
        if not isinstance(theirs, Card) or not theirs.has(num_bytes):
            raise CopyError("the source's card is not one of a pool like ours")
        with _told():
            said: Any = self._nixl.add_remote_agent(theirs.metadata)
        name = bytes(said).decode(errors="replace")  # bytes, whatever its signature says
        if name != source:
            if name not in self._joined:
                with _told():
                    self._nixl.remove_remote_agent(name)
            raise CopyError("the source's card is one of another worker")
        self._joined[source] = theirs

    def leave(self, source: str) -> None:
        if self._joined.pop(source, None) is not None:
            with _told():
                self._nixl.remove_remote_agent(source)

    def begin(self, source: str, reads: Reads) -> Any:
        theirs, regions = self._joined[source], self._regions
        near = _places(reads.addresses, reads.nums, regions.device)
        far = _places(theirs.address + reads.offsets, reads.nums, theirs.device)
        with _told():
            handle = self._nixl.initialize_xfer(
                "READ",
                self._nixl.get_xfer_descs(near, regions.kind),
                self._nixl.get_xfer_descs(far, theirs.kind),
                source,
            )
            self._nixl.transfer(handle)
            return handle

    def is_done(self, handle: Any) -> bool:
        with _told():
            state = self._nixl.check_xfer_state(handle)
            if state == "ERR":
                raise CopyError("a read of the source failed")
        return bool(state == "DONE")

    def progress(self) -> None:
        with _told():
            self._nixl.get_new_notifs()

    def close(self) -> None:
        """UCX stops at once what is under way when its worker goes with the agent."""
        self._joined.clear()
        del self._nixl


def _places(addresses: Column, nums: Column, device: int) -> NDArray[np.uint64]:
    """As nixl wants them: a row for each."""
    devices = np.full(len(nums), device)
    return np.stack([addresses, nums, devices], axis=1).astype(np.uint64)


def is_installed() -> bool:
    """Whether this Python has nixl; nothing is imported."""
    return find_spec(PACKAGE) is not None


@contextmanager
def _told() -> Iterator[None]:
    """What nixl raises as CopyError. Its errors have no base of their own."""
    try:
        yield
    except Exception as error:
        of_nixl = type(error).__module__.startswith(PACKAGE)
        if of_nixl or isinstance(error, ImportError | OSError | RuntimeError):
            raise CopyError(f"nixl: {error}") from None
        raise


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Its import prints to stdout from then on, and makes all logging swallow its own errors."""
    raises = logging.raiseExceptions
    yield
    logging.raiseExceptions = raises
    theirs = logging.getLogger("nixl")
    theirs.handlers.clear()
    theirs.propagate = True
    theirs.setLevel(logging.WARNING)
