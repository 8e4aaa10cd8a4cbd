"""What the operator's page asks: the last requests."""

from dataclasses import replace

import httpx
import pytest

from services.gateway.owner.records.row import Row
from tests.support.fakes.served_app import ServedApp

pytestmark = pytest.mark.anyio

ROW = Row("a", "", "default", "done", "stop", "", 1, 9, 4, 7, 5.0, 2.0, "p0", "d0", 1)
REQUESTS = "/v1/baton/requests"


async def test_the_last_requests(app: ServedApp, client: httpx.AsyncClient) -> None:
    app.door.rows += [ROW, replace(ROW, rid="b", received_ns=2, state="failed")]
    every = (await client.get(REQUESTS)).json()["requests"]
    assert [row["id"] for row in every] == ["b", "a"]
    assert every[1] == ROW.as_dict()
    assert (await client.get(f"{REQUESTS}/?limit=1")).json() == {"requests": every[:1]}
    failed = await client.get(REQUESTS, params={"failed": 1, "slow": 0})
    assert failed.json() == {"requests": every[:1]}


@pytest.mark.parametrize(
    ("query", "param"), [("limit=all", "limit"), ("failed=yes", "failed"), ("page=2", "page")]
)
async def test_a_bad_query_is_refused(client: httpx.AsyncClient, query: str, param: str) -> None:
    refused = await client.get(f"{REQUESTS}?{query}")
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"
