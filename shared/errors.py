"""Every error Baton raises for the outside; `assert` is for our own invariants only.

BatonError
 +- SettingsError          a flag, variable or file says something impossible    exit 2
 +- ModelError             a checkpoint we cannot serve, and why                 exit 2
 +- MissingError           the machine lacks something; the message has the cure exit 3
 +- NoGatewayError         nothing answers at the URL                            exit 4
 +- RequestError           the client's request is wrong (HTTP 4xx)
 +- OverloadedError        no room now; carries Retry-After (HTTP 429 or 503)
 +- AttemptError           one attempt failed; the gateway may retry the request
 +- GrammarError           a grammar is wrong, needs too much, or allows no output
 |   +- OffGrammarError    an output cannot go on by it here; another attempt may
 +- ProtocolError          a peer sent what the wire format does not allow
 |   +- OtherPeerError     another peer answers at the address
 |   +- UnknownMessageError  a kind of message that this release does not know
 +- OutOfBlocksError       the KV pool has no free block
 +- StateUnavailableError  Redis does not answer
 |   +- StateRefusedError  it answers and does not write (out of memory, read only): nothing is done
 +- KVTransferError        a pull failed; the attempt is lost, the workers are not
     +- StaleBlocksError   the source blocks were reused before the pull ended
     +- CorruptPieceError  bytes arrived that were not sent
     +- PeerLostError      the peer closed, refused or stopped answering
         +- CannotMapError its pool cannot be mapped here; it may be reached another way
"""


class BatonError(Exception):
    """Root of the tree above. `exit_code` is what the command line returns."""

    exit_code = 1


class SettingsError(BatonError):
    exit_code = 2


class ModelError(BatonError):
    exit_code = 2


class MissingError(BatonError):
    exit_code = 3


class NoGatewayError(BatonError):
    exit_code = 4


class RequestError(BatonError):
    """A client error in OpenAI's shape."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind


class OverloadedError(BatonError):
    """No room (429) or no worker (503)."""

    def __init__(self, message: str, *, retry_after_s: float, status: int = 429) -> None:
        """`retry_after_s`: an estimate, not a constant; infinite where no wait helps."""
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.status = status


class AttemptError(BatonError):
    """A request ended without its answer after every attempt it was allowed."""

    def __init__(self, message: str, *, code: str, status: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status


class GrammarError(BatonError):
    pass


class OffGrammarError(GrammarError):
    pass


class ProtocolError(BatonError):
    pass


class OtherPeerError(ProtocolError):
    pass


class UnknownMessageError(ProtocolError):
    pass


class OutOfBlocksError(BatonError):
    pass


class StateUnavailableError(BatonError):
    pass


class StateRefusedError(StateUnavailableError):
    pass


class KVTransferError(BatonError):
    pass


class StaleBlocksError(KVTransferError):
    pass


class CorruptPieceError(KVTransferError):
    pass


class PeerLostError(KVTransferError):
    pass


class CannotMapError(PeerLostError):
    pass
