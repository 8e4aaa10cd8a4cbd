"""The promise every KV transport keeps.

    prefill side                                  decode side
    offer = transport.offer(attempt, ticket)
    offer.publish(piece) ...                      pulled = await transport.pull(...)
    offer.seal(run)        -- or offer.end()
    on_release(attempt)                           (released once verified)

Owners of the blocks. Prefill's blocks belong to prefill's engine until `on_release` or the
lease's end; a transport only reads them. Decode's blocks belong to the caller of `pull`, which
must not free them before `pull` has returned or raised: that is the quarantine (R7, R18).

What may be called twice: `withdraw` and `close`; `publish`, `seal` and `end` repeated or out of
turn change nothing. Nothing here blocks the engine's thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.kv.memory import Piece
from shared.loops import Loops
from shared.protocol import Attempt, TokenRun
from shared.transfer.traffic import Traffic
from shared.transfer_address import TransferAddress


@dataclass(frozen=True)
class PullRequest:
    """What a decode worker needs to fetch one attempt's KV."""

    attempt: Attempt
    source: TransferAddress
    """of the prefill worker"""
    source_incarnation: str
    """incarnation the attempt is bound to; any other refuses (R14)"""
    ticket: str
    block_ids: tuple[int, ...]
    """destination blocks in logical order, all prompt blocks"""
    num_present_blocks: int = 0
    """leading destination blocks that hold the right content already and are not pulled"""
    on_nearing: Callable[[], None] = lambda: None
    """called once, when most of what prefill's last step writes is published: token 1 is near"""


@dataclass(frozen=True)
class Pulled:
    """A verified hand-over: every block is one consistent copy of what prefill wrote."""

    run: TokenRun | None
    """token 1 (the last token prefill sampled); None when prefill ended the request itself"""
    num_bytes: int
    """payload bytes received, blocks read again included"""
    num_blocks: int
    """distinct blocks received"""
    start_ns: int
    """wall clock: first byte asked for"""
    sealed_ns: int
    """wall clock: SEAL arrived; what follows is not hidden behind prefill"""
    end_ns: int
    """wall clock: verified"""
    transport: str = ""
    """the way that the blocks came by, as counters and traces call it"""
    why: str = ""
    """it was this way"""
    bytes_s: float = 0.0
    """at which blocks of this source come while the link is full; 0 until it was"""
    busy_s: float = 0.0
    """in which blocks that were asked for had not all come; waiting for prefill is not in it"""
    num_reread: int = 0
    """blocks read again because their generation had changed or their bytes were damaged"""
    published_ns: int = 0
    """wall clock: the last layer group was published, as this side heard it; 0: not known"""
    copied_ns: int = 0
    """wall clock: the last read ended, and what it brought had been digested; 0: not known"""


OnRelease = Callable[[Attempt], None]
"""Prefill may free the attempt's blocks: decode released them, or the lease ran out. Called
exactly once per sealed offer, always from the event loop, and never for an offer that was ended
or withdrawn (its caller knows already) or after `close`."""


class Offer(Protocol):
    """Prefill's side of one attempt."""

    def publish(self, piece: Piece, step: int | None = None) -> None:
        """The piece's bytes are complete (R11), or will be once the engine's `step` has run: decode
        may read each layer group from the moment it is written.

        A later piece may replace blocks of an earlier one (the prefill was run again); decode
        reads those again. Ignored once sealed, ended or withdrawn.
        """

    def seal(self, run: TokenRun) -> None:
        """All pieces are published; starts the lease (R16). `run` is token 1.

        ValueError when the pieces leave a gap.
        """

    def end(self) -> None:
        """The request ended at token 1; nothing is to be pulled."""

    def withdraw(self) -> None:
        """Cancelled: refuse every later read of this attempt. Safe to call twice."""


class KVTransport(Protocol):
    """Serves this worker's blocks and pulls a peer's."""

    @property
    def ways(self) -> Sequence[str]:
        """By which blocks may be pulled, as counters and traces call them."""

    @property
    def address(self) -> TransferAddress:
        """Where peers reach this transport; nowhere before `start`."""

    on_release: OnRelease
    """set by the service that offers, before `start`"""

    @property
    def traffic(self) -> Traffic:
        """What moves, and how fast. The callers of `offer` and `pull` say there what to expect."""

    @property
    def loops(self) -> Loops:
        """What runs from `start` to `close`."""

    async def start(self) -> None:
        """Begin to serve. A worker that only pulls need not."""

    def offer(self, attempt: Attempt, ticket: str) -> Offer:
        """Open an attempt for reading, before its first piece is known.

        ValueError if it is open already: an epoch is offered once (R2).
        """

    async def pull(self, request: PullRequest) -> Pulled:
        """Read pieces as they are published, then after SEAL verify once and release.

        Raises StaleBlocksError, CorruptPieceError or PeerLostError; destination blocks then
        hold garbage and are free to reuse. Cancelling the call returns only after the read in
        flight has stopped touching them.
        """

    async def keep(self, request: PullRequest) -> None:
        """Until cancelled: show the source that this reader lives and will pull as soon as it
        has blocks to pull into, and meanwhile decide by which way. Touches no block and raises
        nothing that a peer can cause; the first sign goes out after a third of a lease, so a
        pull that follows at once costs nothing more."""

    async def close(self) -> None:
        """Stop serving; pulls in flight on either side fail. Safe to call twice."""
