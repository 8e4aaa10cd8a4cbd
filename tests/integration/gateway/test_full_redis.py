"""A Redis that is full, behind a gateway's process.

The failure guarded (B14): requests end in ways nobody understands, and what an outage left goes
on asking forever. The same for the size of what an ended request leaves.
"""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from services.gateway.http.request_id import fresh_id
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.served_pool import ServedPool
from shared.kv.block_hash import BlockHashing
from shared.process import new_incarnation
from shared.state.embedded import EmbeddedRedis, find_server
from shared.state.keys import ENDED_TTL_S, Keys
from shared.state.records import AdmittedRequest, Outcome, RequestState, pool_id
from shared.state.redis_client import RedisClient
from shared.state.redis_records import RedisRequestRecords
from shared.state.reply import as_int, as_list, as_text
from tests.support.fakes.mock_cell import MockCell, mock_cell

pytestmark = pytest.mark.anyio
MAX_RECORD_BYTES = 400
POOL = "llama-3.1-8b-instruct@" + 32 * "a" + ":" + 32 * "b"


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A server of the test's own."""
    with EmbeddedRedis(find_server()) as server:
        yield server


def ask(cell: MockCell, path: str, body: bytes | None = None) -> tuple[int, dict[str, str], str]:
    address = urlsplit(cell.url)
    with closing(http.client.HTTPConnection(str(address.hostname), address.port)) as connection:
        headers = {"content-type": "application/json"}
        connection.request("POST" if body else "GET", path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()


async def test_a_full_redis_is_a_503_in_words(own_redis: EmbeddedRedis, tmp_path: Path) -> None:
    body = json.dumps({"model": "demo", "prompt": [7] * 40, "max_tokens": 2}).encode()
    with mock_cell(own_redis.url, tmp_path) as cell:
        async with RedisClient(own_redis.url) as client:
            await client.command("CONFIG", "SET", "maxmemory", "1")
            for _ in range(3):
                status, headers, text = ask(cell, "/v1/completions", body)
                assert status == 503
                assert int(headers["retry-after"]) >= 1
                assert "the state store refuses writes" in json.loads(text)["error"]["message"]
            status, _, text = ask(cell, "/ready")
            assert (status, json.loads(text)["redis"]) == (200, "refuses writes")
            assert cell.metric("baton_admissions_refused_total") == 3
            await client.command("CONFIG", "SET", "maxmemory", "0")
            assert ask(cell, "/v1/completions", body)[0] == 200
            assert json.loads(ask(cell, "/ready")[2])["redis"] == "ok"


async def test_an_answer_of_many_choices_is_one_record(
    own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    with mock_cell(own_redis.url, tmp_path) as cell:
        answer = cell.complete([7] * 40, n=128, max_tokens=2)
        assert len(answer["choices"]) == 128
        async with RedisClient(own_redis.url) as client:
            keys = [as_text(key) for key in as_list(await client.command("KEYS", "*:request:*"))]
            assert len(keys) == 1
            record = await RedisRequestRecords(client, Keys()).read(keys[0].rpartition(":")[2])
            assert as_int(await client.command("MEMORY", "USAGE", keys[0])) <= MAX_RECORD_BYTES
    assert record is not None
    assert answer["id"].endswith(record.request.rid)
    assert (record.state, record.num_output_tokens) == (RequestState.DONE, 256)
    assert (record.request.num_prompt_tokens, record.num_attempts) == (40, 1)


async def test_an_ended_request_leaves_little_and_not_for_long(redis_url: str) -> None:
    served = ServedPool("m", POOL, 16)
    identity = GatewayIdentity(
        new_incarnation("gateway-1"), served, "1", "", "m", 99, BlockHashing(b"", 16)
    )
    request = AdmittedRequest(
        fresh_id(),
        identity.gateway_incarnation,
        "default",
        pool_id(identity.pool),
        131_072,
        1_763_870_000_000_000_000,
    )
    async with RedisClient(redis_url) as client:
        records = RedisRequestRecords(client, Keys())
        await records.admit(request)
        await records.finish(request, Outcome(RequestState.DONE, "length", 32_768, 131_072))
        key = Keys().request(request.rid)
        assert as_int(await client.command("MEMORY", "USAGE", key)) <= MAX_RECORD_BYTES
        assert as_int(await client.command("TTL", key)) <= ENDED_TTL_S
        await client.command("DEL", key)
