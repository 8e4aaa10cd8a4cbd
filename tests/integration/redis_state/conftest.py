"""One `backend` per implementation: memory, the Redis on PATH, Redis 6.2."""

from collections.abc import AsyncIterator

import pytest

from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.reply import as_list, as_text
from tests.integration.redis_state.backends import Backend, MemoryBackend, RedisBackend
from tests.support.redis_server import RedisServers, server_names


@pytest.fixture(params=server_names())
async def redis_backend(
    request: pytest.FixtureRequest, redis_servers: RedisServers, redis_keys: Keys
) -> AsyncIterator[RedisBackend]:
    async with RedisClient(redis_servers.url(request.param)) as client:
        yield RedisBackend(client, redis_keys)
        await _delete_all(client, redis_keys)


@pytest.fixture(params=("memory", *server_names()))
async def backend(
    request: pytest.FixtureRequest, redis_servers: RedisServers, redis_keys: Keys
) -> AsyncIterator[Backend]:
    if request.param == "memory":
        yield MemoryBackend()
        return
    async with RedisClient(redis_servers.url(request.param)) as client:
        yield RedisBackend(client, redis_keys)
        await _delete_all(client, redis_keys)


async def _delete_all(client: RedisClient, keys: Keys) -> None:
    names = as_list(await client.command("KEYS", f"{keys.deployment}:*"))
    if names:
        await client.command("DEL", *(as_text(name) for name in names))
