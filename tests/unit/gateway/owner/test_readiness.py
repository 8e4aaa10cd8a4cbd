"""When clients should come to a gateway: what its pool needs, how long it waits for prefill, and
what it does when the workers are gone again.

The failure guarded: a rollout of the only decode worker, in which all gateways turn unready and
their Service refuses connections.
"""

import pytest

from services.gateway.owner.links.worker_links import PREFILL_WAIT_S
from shared.errors import OverloadedError
from shared.protocol import Assign
from tests.unit.gateway.owner.gateway_bench import POOL, Bench, FakeWorker, started, until

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


async def test_a_gateway_that_has_served_stays_ready_when_the_only_worker_leaves() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        assert not bench.door.ready(), "it has never served"
        await bench.add(d)
        assert bench.door.ready() and bench.door.serves()
        d.die()
        await bench.registry.remove(POOL, d.incarnation)
        await until(bench.door.ready)
        assert not bench.door.serves()
        assert bench.door.trouble() == "no decode worker is linked"
        with pytest.raises(OverloadedError) as refused:
            bench.door.submit(bench.request())
        assert refused.value.status == 503 and refused.value.retry_after_s > 0


async def test_to_have_served_counts_although_nobody_asked_for_readiness() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        bench.door.submit(bench.request())
        d.die()
        await bench.registry.remove(POOL, d.incarnation)
        await until(bench.door.ready)


async def test_a_gateway_cut_off_from_a_listed_worker_is_not_ready() -> None:
    """Another gateway may reach it."""
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        d.reachable = False
        assert d.link is not None
        d.link.hang_up()
        await until(lambda: not bench.door.ready())
        d.reachable = True
        await until(bench.door.serves)
        assert bench.door.ready()


async def test_what_was_listed_before_redis_went_away_proves_nothing() -> None:
    """No gateway admits a request then."""
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        assert bench.door.ready()
        bench.registry.away = True
        await until(lambda: not bench.links.registry_answers)
        d.reachable = False
        d.die()
        assert bench.door.ready() and not bench.door.serves()


async def test_a_listed_worker_of_another_role_or_of_no_use_counts_by_its_role() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        p.reachable = False
        p.die()
        await until(lambda: not bench.links.views[1:])
        assert bench.door.ready() and bench.door.serves(), "decode computes prompts too"
        d.die()
        await bench.registry.remove(POOL, d.incarnation)
        await until(lambda: bench.door.ready() and not bench.door.serves())


async def test_where_another_pool_of_the_model_has_workers_a_gateway_without_any_is_not_ready() -> (
    None
):
    """A gateway keeps its pool while requests live; others serve the new one already."""
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        bench.served.others = ("demo@other",)
        assert bench.door.ready()
        d.die()
        bench.served.others = ("demo@other",)
        assert not bench.door.ready()
