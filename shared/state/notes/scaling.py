"""What the autoscaler last decided for a pool, for gateways to show.

One value per pool, written again and again; it expires when its writer is gone.
"""

from dataclasses import dataclass

from shared.codec import Codec
from shared.errors import ProtocolError
from shared.state.keys import WORKER_KEYS_TTL_S, Keys
from shared.state.records import pool_id
from shared.state.redis_client import RedisClient

TELL_S = 5.0
"""between two writes"""


@dataclass(frozen=True)
class RoleScaling:
    """Of the workers of one role."""

    role: str
    replicas: int
    wanted: int
    num_draining: int
    reason: str


@dataclass(frozen=True)
class Scaling:
    """One decision. Other releases read it too: a new field comes last and has a default."""

    mode: str
    acts: bool
    """else it only advises"""
    holds: str
    """why nothing is changed; empty if nothing stands in the way"""
    trouble: str
    roles: tuple[RoleScaling, ...]


_CODEC = Codec((Scaling,))


class ScalingNotes:
    """In Redis."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def tell(self, pool: str, scaling: Scaling) -> None:
        """For the pool of that name. StateUnavailableError."""
        key = self._keys.scaling(pool_id(pool))
        await self._client.command("SET", key, _CODEC.encode(scaling), "EX", WORKER_KEYS_TTL_S)

    async def of(self, pool: str) -> Scaling | None:
        """None: nobody decided lately, or in a release that cannot be read here.
        StateUnavailableError."""
        value = await self._client.command("GET", self._keys.scaling(pool_id(pool)))
        if not isinstance(value, bytes):
            return None
        try:
            told: Scaling = _CODEC.decode(value)
        except ProtocolError:
            return None
        return told
