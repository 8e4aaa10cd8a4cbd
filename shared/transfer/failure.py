"""How a pull ends when it does not end well: refusals, verdicts and grouped errors as the typed
errors of the contract."""

from typing import NoReturn

from shared.errors import CorruptPieceError, KVTransferError, PeerLostError, StaleBlocksError
from shared.transfer.frames import Refusal


def raise_refusal(reason: Refusal) -> NoReturn:
    """What the source's refusal means to the caller of `pull`."""
    if reason in ("withdrawn", "expired", "released"):
        raise StaleBlocksError(f"the offer is {reason}")
    if reason == "damaged":
        raise CorruptPieceError("a frame arrived damaged at the source")
    raise PeerLostError(f"the source refuses: {reason}")


def check_verdict(fresh: bool, complete: bool) -> None:
    """R13: use the blocks only if the source says that none was reused and all have matched
    their digests."""
    if not fresh:
        raise StaleBlocksError("the source reused blocks before the pull had ended")
    if not complete:
        raise CorruptPieceError("blocks do not match their digests, however often they are read")


def pull_failure(group: BaseExceptionGroup[BaseException]) -> KVTransferError:
    """The first error of a pull's tasks; a breach of the protocol counts as damage."""
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return pull_failure(first)
    if isinstance(first, KVTransferError):
        return first
    return CorruptPieceError(str(first))
