"""What a cell keeps in Redis: the server itself, and the workers registered there."""

import asyncio

from services.cli.doctor.finding import Finding, fail, failed, ok
from services.cli.doctor.gateway import GatewayFacts
from services.cli.doctor.redis_server import gather_redis, judge_no_redis, judge_redis
from services.cli.doctor.workers import gather_workers, judge_worker, served_pool
from shared.errors import StateUnavailableError
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry


def check_store(url: str, cell_secret: str, gateway: GatewayFacts | None) -> list[Finding]:
    """SettingsError for what is no URL of a Redis. `gateway`: the one that was asked, if any."""
    return asyncio.run(_check(url, cell_secret, gateway))


async def _check(url: str, cell_secret: str, gateway: GatewayFacts | None) -> list[Finding]:
    async with RedisClient(url) as redis:
        try:
            found = judge_redis(await gather_redis(redis))
        except StateUnavailableError as error:
            found = [judge_no_redis(error)]
            if found[0].level == "FAIL":
                return found
        return found + await _check_workers(redis, cell_secret, gateway)


async def _check_workers(
    redis: RedisClient, cell_secret: str, gateway: GatewayFacts | None
) -> list[Finding]:
    registry = RedisWorkerRegistry(redis, Keys())
    try:
        listed = [await registry.list(pool) for pool in sorted(await registry.pools())]
    except StateUnavailableError as error:
        return [failed("registry", error, "give --redis a user that may read it")]
    entries = [entry for pool in listed for entry in pool]
    if not entries and gateway is None:
        return [ok("registry", "no worker is registered yet")]
    if not entries:
        cure = "start one with this Redis: `baton serve decode --redis ...`"
        return [fail("registry", "no worker is registered", cure)]
    release = gateway.release if gateway is not None else ""
    linked = gateway.linked if gateway is not None and gateway.status else None
    model = str(gateway.status.get("model", "")) if gateway is not None and gateway.status else ""
    served = served_pool(entries, linked, release, model)
    return [
        finding
        for facts in await gather_workers(entries, cell_secret)
        for finding in judge_worker(facts, served, has_secret=bool(cell_secret))
    ]
