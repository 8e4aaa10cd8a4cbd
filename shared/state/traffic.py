"""HTTP requests of a pool as they came and as they ended, in that order, for whoever plans.

Written with the record of a request (`admit.lua`, `finish.lua`), so it costs no round trip, and
each at most once.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from shared.codec import Codec
from shared.errors import ProtocolError
from shared.state.keys import Keys
from shared.state.records import AdmittedRequest, FinalState, Outcome, RequestState, pool_id
from shared.state.redis_client import RedisClient, Script
from shared.state.reply import Reply, as_bytes, as_int, as_list, as_text, narrowing

READ = Script.beside(__file__, "read_traffic")
MAX_LENGTH = 25_000
"""of each list; some 2 MB"""
MAX_READ = 5_000
"""by one call"""
BEGINNING = "0-0"
"""before the first"""


@dataclass(frozen=True)
class Arrived:
    """A request that was admitted. Other releases read it too: a new field comes last and has a
    default."""

    rid: str
    num_prompt_tokens: int


@dataclass(frozen=True)
class Ended:
    """One that ended. Other releases read it too: a new field comes last and has a default."""

    age_s: float
    """from its arrival to its end, by its gateway's clock"""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    state: FinalState = RequestState.DONE
    rid: str = ""
    """empty: an earlier release wrote it"""
    ttft_s: float = -1.0
    """from its arrival to its first token; below 0: it had none, or an earlier release wrote it"""


One = TypeVar("One", Arrived, Ended)


class Noted(NamedTuple, Generic[One]):
    """One of a list."""

    place: str
    """its id there"""
    ago_s: float
    """since it was noted, by the server's clock"""
    request: One | None
    """None: it cannot be read"""


_ARRIVED, _ENDED = Codec((Arrived,)), Codec((Ended,))


def encode_arrived(request: AdmittedRequest) -> bytes:
    return _ARRIVED.encode(Arrived(request.rid, request.num_prompt_tokens))


def encode_ended(request: AdmittedRequest, outcome: Outcome, now_ns: int) -> bytes:
    """`now_ns`: wall clock of its gateway."""
    return _ENDED.encode(
        Ended(
            age_s=round(max(0.0, (now_ns - request.received_ns) / 1e9), 3),
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=outcome.num_cached_tokens,
            num_output_tokens=outcome.num_output_tokens,
            state=outcome.state,
            rid=request.rid,
            ttft_s=round(outcome.ttft_s, 3),
        )
    )


class Traffic:
    """The two lists in Redis. Each reads those of the pool of that name behind `place`, at most
    MAX_READ of them, oldest first. StateUnavailableError."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def arrived(self, pool: str, place: str = BEGINNING) -> tuple[Noted[Arrived], ...]:
        return await self._read(self._keys.arrived(pool_id(pool)), place, _ARRIVED.decode)

    async def ended(self, pool: str, place: str = BEGINNING) -> tuple[Noted[Ended], ...]:
        return await self._read(self._keys.ended(pool_id(pool)), place, _ENDED.decode)

    async def _read(
        self, key: str, place: str, decode: Callable[[bytes], One]
    ) -> tuple[Noted[One], ...]:
        answer = await self._client.run(READ, [key], [f"({place}", MAX_READ])
        with narrowing():
            now_ms, entries = as_list(answer)
            given = entries if isinstance(entries, list) else []
            return tuple(_noted(as_int(now_ms), entry, decode) for entry in given)


def _noted(now_ms: int, entry: Reply, decode: Callable[[bytes], One]) -> Noted[One]:
    name, fields = as_list(entry)
    place = as_text(name)
    request: One | None = None
    with suppress(ProtocolError, IndexError):
        request = decode(as_bytes(as_list(fields)[1]))
    return Noted(place, (now_ms - int(place.partition("-")[0])) / 1000, request)
