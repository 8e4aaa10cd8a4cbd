"""The list of requests of a whole core: what workers say ends up in its rows."""

import pytest

from services.gateway.owner.records.row import RowFilter
from tests.unit.gateway.owner.gateway_bench import Bench, FakeWorker, settle, started

pytestmark = pytest.mark.anyio


async def test_a_row_from_the_first_token_to_the_end() -> None:
    async with started(Bench("agg")) as bench:
        worker = FakeWorker("decode", "d0")
        await bench.add(worker)
        bench.door.submit(bench.request("r1", max_tokens=4))
        worker.start(num_cached_tokens=16)
        for index, wait_s in enumerate((0.5, 0.25, 2.0)):
            bench.clock.advance(wait_s)
            worker.tokens(index, 7)
        (row,) = bench.door.last_requests(RowFilter(9))
        assert (row.state, row.completion_tokens, row.cached_tokens) == ("live", 3, 16)
        assert (row.ttft_ms, row.worst_gap_ms) == (500.0, 2000.0)
        worker.tokens(3, 7, reason="length")
        await settle()
        (row,) = bench.door.last_requests(RowFilter(9))
        assert (row.state, row.finish_reason, row.completion_tokens) == ("done", "length", 4)
        assert (row.decode, row.num_attempts, row.worst_gap_ms) == ("d0", 1, 2000.0)
