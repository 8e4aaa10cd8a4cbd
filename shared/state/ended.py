"""HTTP requests of a pool that ended, in the order of their ends: what came, for whoever plans.

Written with the record of a request (`finish.lua`), so it costs no round trip, and at most once.
"""

from dataclasses import dataclass
from typing import NamedTuple

from shared.codec import Codec
from shared.errors import ProtocolError
from shared.state.keys import Keys
from shared.state.records import AdmittedRequest, FinalState, Outcome, RequestState, pool_id
from shared.state.redis_client import RedisClient, Script
from shared.state.reply import Reply, as_bytes, as_int, as_list, as_text, narrowing

READ = Script.beside(__file__, "read_ended")
MAX_LENGTH = 25_000
"""of the list; some 2 MB"""
MAX_READ = 5_000
"""by one call"""
BEGINNING = "0-0"
"""before the first"""


@dataclass(frozen=True)
class Ended:
    """One request. Other releases read it too: a new field comes last and has a default."""

    age_s: float
    """from its arrival to its end, by its gateway's clock"""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    state: FinalState = RequestState.DONE


class EndedAt(NamedTuple):
    """One of the list."""

    place: str
    """its id there"""
    ago_s: float
    """since its end, by the server's clock"""
    request: Ended


_CODEC = Codec((Ended,))


def encode_ended(request: AdmittedRequest, outcome: Outcome, now_ns: int) -> bytes:
    """`now_ns`: wall clock of its gateway."""
    return _CODEC.encode(
        Ended(
            age_s=round(max(0.0, (now_ns - request.received_ns) / 1e9), 3),
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=outcome.num_cached_tokens,
            num_output_tokens=outcome.num_output_tokens,
            state=outcome.state,
        )
    )


class EndedRequests:
    """The list in Redis."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def after(self, pool: str, place: str = BEGINNING) -> tuple[EndedAt, ...]:
        """Those of the pool of that name behind `place`, at most MAX_READ of them, oldest first.
        What cannot be read is left out. StateUnavailableError."""
        key = self._keys.ended(pool_id(pool))
        answer = await self._client.run(READ, [key], [f"({place}", MAX_READ])
        with narrowing():
            now_ms, entries = as_list(answer)
            given = entries if isinstance(entries, list) else []
            read = (_ended(as_int(now_ms), entry) for entry in given)
            return tuple(one for one in read if one is not None)


def _ended(now_ms: int, entry: Reply) -> EndedAt | None:
    """None: it cannot be read."""
    name, fields = as_list(entry)
    place = as_text(name)
    try:
        request = _CODEC.decode(as_bytes(as_list(fields)[1]))
    except (ProtocolError, IndexError):
        return None
    return EndedAt(place, (now_ms - int(place.partition("-")[0])) / 1000, request)
