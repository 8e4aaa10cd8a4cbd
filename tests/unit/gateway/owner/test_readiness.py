"""When a gateway is ready for requests: what its pool needs, and how long it waits for prefill."""

import pytest

from services.gateway.owner.links.worker_links import PREFILL_WAIT_S
from shared.protocol import Assign
from tests.unit.gateway.owner.gateway_bench import Bench, FakeWorker, started

pytestmark = pytest.mark.anyio


def pair() -> tuple[FakeWorker, FakeWorker]:
    return FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")


async def test_a_pool_of_decode_workers_alone_is_aggregated() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        assert bench.door.ready()
        bench.door.submit(bench.request())
        assert d.last(Assign).reason == "agg"


async def test_a_starting_pd_pool_is_not_ready_without_its_prefill_worker() -> None:
    p, d = pair()
    async with started(Bench(topology="pd")) as bench:
        await bench.add(d)
        assert not bench.door.ready()
        assert bench.door.trouble() == "no prefill worker is linked"
        await bench.add(p)
        assert bench.door.ready()


async def test_a_pd_pool_serves_without_prefill_once_it_has_waited_for_it() -> None:
    """A gateway that starts while no prefill worker lives must not wait forever."""
    p, d = pair()
    async with started(Bench(topology="pd")) as bench:
        bench.clock.advance(2 * PREFILL_WAIT_S)
        await bench.add(d)
        assert not bench.door.ready(), "the wait begins with the first worker"
        bench.clock.advance(PREFILL_WAIT_S)
        assert bench.door.ready()
        bench.door.submit(bench.request())
        assert (d.last(Assign).mode, d.last(Assign).reason) == ("local", "no_prefill_worker")
        await bench.add(p)
        bench.door.submit(bench.request("r2"))
        assert p.last(Assign).mode == "prefill"
