"""A worker without an engine: it answers at once and computes nothing.

What measures or tests a gateway brings the links. ASSIGN is answered with START and token 1,
RECEIVE with one token a step.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shared.protocol import (
    Assign,
    Attempt,
    Cancel,
    FinishReason,
    Hello,
    Load,
    Message,
    Ping,
    Pong,
    Receive,
    Start,
    TokenRun,
    Tokens,
    Work,
)
from shared.transfer_address import TransferAddress

MUCH = 10**6

Send = Callable[[Message], None]
"""to one gateway; the same one for all that is sent to it"""


@dataclass
class _Decoding:
    work: Work
    send: Send
    next_index: int = 0


class MockWorker:
    """Does no I/O; every token is `token_id`."""

    def __init__(self, role: Literal["prefill", "decode"], incarnation: str, pool: str) -> None:
        self.role: Literal["prefill", "decode"] = role
        self.incarnation = incarnation
        self.token_id = 0
        self._pool = pool
        self._decoding: dict[str, _Decoding] = {}

    @property
    def num_decoding(self) -> int:
        """Requests that get a token at the next step."""
        return len(self._decoding)

    def hello(self) -> Hello:
        address = TransferAddress("127.0.0.1:1" if self.role == "prefill" else "")
        return Hello(self.role, self.incarnation, self._pool, (), self._load(), address)

    def receive(self, message: Message, send: Send) -> None:
        """A message of the gateway that `send` answers."""
        match message:
            case Ping(seq):
                send(Pong(seq, self._load()))
            case Assign(work):
                send(Start(work.attempt, self.incarnation, 0, self._load()))
                run = self._run(work.attempt, 0, last=work.sampling.max_tokens == 1)
                send(Tokens(self.incarnation, (run,), self._load()))
            case Receive(work):
                self._decoding[work.attempt.rid] = _Decoding(work, send)
            case Cancel(attempt):
                self._decoding.pop(attempt.rid, None)

    def step(self) -> list[tuple[Send, Tokens]]:
        """A token for every request, in one frame for each gateway."""
        runs: dict[Send, list[TokenRun]] = defaultdict(list)
        for rid, decoding in list(self._decoding.items()):
            last = decoding.next_index + 1 == decoding.work.sampling.max_tokens
            run = self._run(decoding.work.attempt, decoding.next_index, last=last)
            runs[decoding.send].append(run)
            decoding.next_index += 1
            if last:
                del self._decoding[rid]
        return [
            (send, Tokens(self.incarnation, tuple(of_one), self._load()))
            for send, of_one in runs.items()
        ]

    def _run(self, attempt: Attempt, index: int, *, last: bool) -> TokenRun:
        reason: FinishReason | None = "length" if last else None
        return TokenRun(*attempt, index, (self.token_id,), (), reason)

    def _load(self) -> Load:
        return Load(MUCH, 0, len(self._decoding), 0, MUCH, MUCH, 0, 0)
