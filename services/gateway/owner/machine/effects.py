"""What a request's state machine asks its surroundings to do."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from shared.protocol import FinishReason, TokenLogprobs

Mode = Literal["prefill", "local"]
LocalReason = Literal["", "agg", "no_prefill_worker", "no_pair", "slow_link"]
Outcome = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True)
class SendAssign:
    """Send ASSIGN of this epoch to `incarnation`."""

    epoch: int
    incarnation: str
    mode: Mode
    reason: LocalReason


@dataclass(frozen=True)
class ChooseDecode:
    """Prefill has started: choose a decode worker for this epoch, now or when one lives."""

    epoch: int


@dataclass(frozen=True)
class SendReceive:
    """Send RECEIVE of this epoch to `decode_incarnation`."""

    epoch: int
    prefill_incarnation: str
    decode_incarnation: str


@dataclass(frozen=True)
class SendCancel:
    """Tell `incarnation` to drop this epoch's attempt."""

    epoch: int
    incarnation: str
    reason: str


@dataclass(frozen=True)
class Requeue:
    """The request waits for a worker as `epoch`."""

    epoch: int
    prefer_incarnation: str | None
    """has the prefix cached"""
    blamed: tuple[str, ...]
    """where the last attempt ended: a worker, or the two between which a hand-over broke"""
    cause: str
    num_failures: int = 0
    """attempts that failed since the request last made progress, the last one included; 0 if that
    one was given back and nobody failed"""


@dataclass(frozen=True)
class Move:
    """Begin `epoch` at the worker that decodes the request: it goes on elsewhere with its KV."""

    epoch: int
    source: str


class Deliver(NamedTuple):
    """Give these tokens to the client; more follow."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True)
class WriteFinish:
    """Record outcome and usage; answer with `finish_answered`, at the latest after 250 ms."""

    outcome: Outcome
    code: str
    num_tokens: int


WRONG_GRAMMAR_CODE = "invalid_schema"
"""the code of a Failure whose message is about the request's grammar"""
CONVICTED_CODE = "request_crashed_worker"
"""of a request that workers die of"""


@dataclass(frozen=True)
class Failure:
    """Why a request failed, in the client's terms."""

    code: str
    message: str
    status: int = 500
    retry_after_s: float | None = None
    """set when the client was refused rather than failed"""


@dataclass(frozen=True)
class End:
    """The one terminal: the tokens still to deliver, if any, with the finish reason, or a failure,
    or nothing."""

    outcome: Outcome
    last: Deliver | None = None
    finish_reason: FinishReason | None = None
    failure: Failure | None = None


Effect = (
    SendAssign
    | ChooseDecode
    | SendReceive
    | SendCancel
    | Requeue
    | Move
    | Deliver
    | WriteFinish
    | End
)
