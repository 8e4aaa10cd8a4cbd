"""Fixtures of the integration tests: real Redis servers and a key prefix per test."""

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from tests.support.redis_server import RedisServers


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[RedisServers]:
    servers = RedisServers()
    yield servers
    servers.close()


@pytest.fixture
def redis_url(redis_servers: RedisServers) -> str:
    return redis_servers.url()


@pytest.fixture
def redis_keys() -> Keys:
    """Keys that no other test has."""
    return Keys(f"test-{uuid4().hex[:12]}")


@pytest.fixture
async def redis_client(redis_url: str) -> AsyncIterator[RedisClient]:
    async with RedisClient(redis_url) as client:
        yield client
