"""What the HTTP layer and the request's owner say to each other.

    generation = door.submit(GenerateRequest(...))
    async for delta in generation: ...
    await generation.finish("stop")     # the text side found a stop string
    generation.cancel()                 # the client left

The owner (`services.gateway.owner.requests`) fills a generation with `put`, `end` and `fail`; the
HTTP layer only reads it.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from shared.errors import BatonError
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.protocol import DEFAULT_PRIORITY, FinishReason, Sampling, TokenLogprobs
from shared.state.records import ClientKey

Endpoint = Literal["chat", "text"]


@dataclass(frozen=True)
class Group:
    """An HTTP request that asked for several choices."""

    rid: str
    num_choices: int
    num_prompt_tokens: int
    """of all its prompts, each counted once"""


@dataclass(frozen=True)
class GenerateRequest:
    """One (prompt, choice), validated and tokenized."""

    rid: str
    tenant: str
    endpoint: Endpoint
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    timeout_s: float
    """what is left of its HTTP request's time; may be infinite"""
    traceparent: str | None
    """W3C context of this request's own span, the parent of what workers report"""
    received_ns: int
    """wall clock when the HTTP request's body was complete"""
    block_hashes: tuple[bytes, ...] | None = None
    """chain hashes of the prompt's full blocks, if the text side computed them already"""
    limit_s: float = math.inf
    """how long its HTTP request may take as a whole"""
    client_traceparent: str | None = None
    """W3C context the client sent, the parent of the request's own span"""
    group: Group | None = None
    """its HTTP request, if that asked for several choices: then `rid` is this choice's own"""
    choice: int = 0
    """its index in the answer"""
    prompt: int = 0
    """which of the HTTP request's prompts it continues"""
    grammar_param: str = "response_format"
    """the client's field that the sampling's grammar comes from"""
    client_key: ClientKey | None = None
    """of its HTTP request"""
    max_live: int = 0
    """HTTP requests of its tenant that may live at once; 0: no limit"""
    prompt_logprobs: int = -1
    """as `Work.prompt_logprobs`"""
    has_stops: bool = False
    """a stop string may end its answer"""
    priority: int = DEFAULT_PRIORITY
    """a lower one goes first"""
    weight: int = 1
    """of its tenant, where tenants wait for each other"""
    prefer_incarnation: str | None = None
    """incarnation that has computed the same prompt for another choice of the group"""

    @property
    def http_rid(self) -> str:
        """Id of its HTTP request, by which it is recorded."""
        return self.rid if self.group is None else self.group.rid

    @property
    def follows(self) -> bool:
        """Its group has begun: the request as a whole was accepted with an earlier choice."""
        return self.prefer_incarnation is not None


class Delta(NamedTuple):
    """Tokens that follow those of the delta before; `finish_reason` is on the last one only."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None = None


class GenerationOwner(Protocol):
    """Whoever answers for a generation's request."""

    async def finish(self, rid: str, reason: FinishReason, num_tokens: int) -> None:
        """End early with `num_tokens` output tokens; returns once that is recorded or late."""

    def cancel(self, rid: str, num_tokens: int) -> None:
        """Nobody reads any more; `num_tokens` were delivered."""


class Generation:
    """The output of one request as it appears. Read it from one task."""

    def __init__(self, rid: str, owner: GenerationOwner) -> None:
        self.rid = rid
        self.cached_tokens = 0
        """prompt tokens prefill found in its cache; valid after the first delta"""
        self.prompt_incarnation: str | None = None
        """incarnation that computed the prompt; valid after the first delta"""
        self.prompt_logprobs: Sequence[PromptLogprobs] = ()
        """of all tokens of the prompt but the first, where they were asked for; valid after the
        first delta"""
        self.accepted = False
        """no full backlog and no quota can refuse it any more; tokens imply it"""
        self._owner = owner
        self._waiting: list[Delta] = []
        self._news = asyncio.Event()
        self._reader: Callable[[Delta], bool] | None = None
        self._failure: BatonError | None = None
        self._ended = False
        self.num_yielded_tokens = 0

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        """The next delta; raises AttemptError, OverloadedError or RequestError on failure.

        What arrived since the last call comes as one delta, so a slow reader costs less."""
        while (delta := self.take()) is None:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return delta

    def share_news(self, news: asyncio.Event) -> None:
        """From now on everything new sets this event: the group's, which clears it."""
        self._news = news
        news.set()

    def read_with(self, reader: Callable[[Delta], bool] | None) -> None:
        """Call `reader` with each delta as it comes, as long as nothing waits before it; what it
        does not take (False) waits as usual."""
        self._reader = reader

    @property
    def begun(self) -> bool:
        """Its first token has arrived: the prompt is computed, and in a prefix cache."""
        return bool(self._waiting) or self.num_yielded_tokens > 0

    @property
    def ended(self) -> bool:
        """Nothing follows what was taken."""
        return self._ended and not self._waiting

    @property
    def failure(self) -> BatonError | None:
        return self._failure

    def take(self) -> Delta | None:
        """What arrived since the last call, as one delta; raises what __anext__ would."""
        if not self._waiting:
            if self._failure is not None:
                raise self._failure
            return None
        delta = _joined(self._waiting)
        self._waiting.clear()
        self.num_yielded_tokens += len(delta.token_ids)
        return delta

    async def finish(self, reason: FinishReason = "stop", num_tokens: int | None = None) -> None:
        """End it from the text side. Returns after the outcome was recorded, or 250 ms.

        `num_tokens`: output tokens the answer is made of; default, all that were read."""
        await self._owner.finish(self.rid, reason, self._count(num_tokens))

    def cancel(self) -> None:
        """The client left; safe to call at any time and twice."""
        self._owner.cancel(self.rid, self.num_yielded_tokens)

    def accept(self) -> None:
        """Owner: recorded, and on a worker or in the backlog."""
        self.accepted = True
        self._news.set()

    def put(self, delta: Delta) -> None:
        """Owner: more tokens."""
        self.accepted = True
        if self._reader is not None and not self._waiting and self._reader(delta):
            self.num_yielded_tokens += len(delta.token_ids)
            return
        self._waiting.append(delta)
        self._news.set()

    def end(self) -> None:
        """Owner: nothing follows."""
        self._ended = True
        self._news.set()

    def fail(self, error: BatonError) -> None:
        """Owner: the reader gets what is waiting, then this error."""
        self._failure = error
        self._news.set()

    def _count(self, num_tokens: int | None) -> int:
        return self.num_yielded_tokens if num_tokens is None else num_tokens


def _joined(deltas: list[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        tuple(token for delta in deltas for token in delta.token_ids),
        tuple(entry for delta in deltas for entry in delta.logprobs),
        deltas[-1].finish_reason,
    )
