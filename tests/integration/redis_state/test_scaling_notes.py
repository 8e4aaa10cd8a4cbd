"""What an autoscaler tells of a pool is what a gateway of that pool reads."""

import pytest

from shared.state.notes.scaling import RoleScaling, Scaling
from shared.state.records import pool_id
from tests.integration.redis_state.backends import RedisBackend

pytestmark = pytest.mark.anyio

PREFILL = RoleScaling("prefill", 2, 3, 1, "2 keep 97 % of waits")
TOLD = Scaling("builtin", True, "a worker starts", "", (PREFILL,))


async def test_the_last_decision_of_each_pool_is_read(redis_backend: RedisBackend) -> None:
    notes = redis_backend.scaling
    assert await notes.of("pool") is None
    await notes.tell("pool", Scaling("builtin", True, "", "Redis was away", ()))
    await notes.tell("pool", TOLD)
    assert await notes.of("pool") == TOLD
    assert await notes.of("other") is None


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x91\xa3box", b"\x92\xa7scaling\x01"])
async def test_what_cannot_be_read_is_not_known(redis_backend: RedisBackend, value: bytes) -> None:
    key = redis_backend.keys.scaling(pool_id("pool"))
    await redis_backend.client.command("SET", key, value)
    assert await redis_backend.scaling.of("pool") is None
