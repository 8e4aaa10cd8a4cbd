"""A whole autoscaler between a real Redis, an API server over HTTP, and workers that register."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from services.autoscaler import disagreement
from services.autoscaler.main import Process
from services.autoscaler.plan import Plan, plan_of
from services.autoscaler.planning import policy
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.records import AdmittedRequest, Outcome, RequestState, pool_id
from shared.state.redis_client import RedisClient
from shared.state.redis_records import RedisRequestRecords
from shared.state.redis_registry import RedisWorkerRegistry
from tests.support.fakes.kube_api import (
    NAMESPACE,
    Asked,
    FakeKubeApi,
    serving,
    write_kubeconfig,
)
from tests.support.fakes.scaled_pods import POOL, RELEASE, ScaledPods
from tests.unit.autoscaler.test_autoscaler_plan import options

pytestmark = pytest.mark.anyio

PREFILL, DECODE = "rel-baton-prefill", "rel-baton-decode"
LOOK_S, HOLD_S, EVERY_S = 3.0, 0.5, 0.1
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes become seconds."""
    monkeypatch.setattr(policy, "HOLD_S", HOLD_S)
    monkeypatch.setattr(disagreement, "PATIENCE_S", 1.0)


@pytest.fixture
def api() -> Iterator[FakeKubeApi]:
    api = FakeKubeApi()
    api.add_deployment(PREFILL, 1)
    api.add_deployment(DECODE, 1)
    with serving(api):
        yield api


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
async def redis(server: EmbeddedRedis) -> AsyncIterator[RedisClient]:
    async with RedisClient(server.url, timeout_s=0.3) as client:
        yield client


@pytest.fixture
async def pods(api: FakeKubeApi, redis: RedisClient) -> AsyncIterator[ScaledPods]:
    registry = RedisWorkerRegistry(redis, Keys(), ttl_s=2.0)
    pods = ScaledPods(api, registry, {"prefill": PREFILL, "decode": DECODE})
    running = asyncio.create_task(pods.run())
    yield pods
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.fixture
def plan(api: FakeKubeApi, tmp_path: Path) -> Plan:
    flags = ("--prefill", PREFILL, "--decode", DECODE, "--release", RELEASE)
    place = ("--namespace", NAMESPACE, "--kubeconfig", str(write_kubeconfig(tmp_path, api.port)))
    made = plan_of(options(*flags, *place, "--mode", "builtin", "--port", "0", "--pool", POOL))
    return replace(made, every_s=EVERY_S, view=replace(made.view, look_s=LOOK_S))


@asynccontextmanager
async def running(redis: RedisClient, plan: Plan) -> AsyncIterator[str]:
    """An autoscaler; the URL of its page."""
    process = Process(redis, plan)
    port = process.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await process.close()


async def comes(holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    start_s = time.monotonic()
    while True:
        found = holds()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() - start_s < LIMIT_S, what
        await asyncio.sleep(0.05)


async def load(redis: RedisClient, num_requests: int) -> None:
    """Prompts of a second each, that came within the last second."""
    records = RedisRequestRecords(redis, Keys())
    for number in range(num_requests):
        received_ns = time.time_ns() - round(1e9 * number / num_requests)
        rid = f"r{received_ns}-{number}"
        request = AdmittedRequest(rid, "g.1", "acme", pool_id(POOL), 1000, received_ns)
        await records.finish(request, Outcome(RequestState.DONE, "stop", 4, 0))


async def acts(url: str) -> bool:
    async with httpx.AsyncClient() as client:
        return "baton_autoscaler_acts 1.0" in (await client.get(f"{url}/metrics")).text


async def explained(url: str) -> str:
    async with httpx.AsyncClient() as client:
        answer = (await client.get(f"{url}/explain")).json()
    sentences = [role["reason"] for role in answer["roles"].values()]
    return " | ".join([answer["holds"], *sentences])


async def test_workers_come_with_the_load_and_go_drained_without_it(
    api: FakeKubeApi, redis: RedisClient, pods: ScaledPods, plan: Plan
) -> None:
    async with running(redis, plan) as url:
        pods.works = True
        loading = asyncio.create_task(_keep_loading(redis))
        await comes(lambda: api.replicas[PREFILL] >= 3, "no workers for the load")
        assert "prefill" in await explained(url)
        loading.cancel()
        pods.works = False
        await comes(lambda: api.replicas[PREFILL] == 1, "the workers stay without load")
        await comes(lambda: len(pods.names("prefill")) == 1, "pods stay")
    assert api.replicas[DECODE] == 1
    assert len(pods.gone) >= 2
    for pod in pods.gone:
        assert pod.drained_s is not None and not pod.has_work_left, f"{pod.name} was serving"


async def _keep_loading(redis: RedisClient) -> None:
    while True:
        await load(redis, 4)
        await asyncio.sleep(1)


async def test_a_drain_ends_when_the_autoscaler_stops_or_load_comes_back(
    api: FakeKubeApi, redis: RedisClient, pods: ScaledPods, plan: Plan
) -> None:
    api.replicas[PREFILL] = 2
    await comes(lambda: len(pods.names("prefill")) == 2, "no pods")
    api.rules = None
    async with running(redis, plan):
        await comes(lambda: any(pod.drained_s is not None for pod in pods.pods), "nobody drains")
    await comes(lambda: all(pod.drained_s is None for pod in pods.pods), "it drains for good")


async def test_without_redis_or_the_cluster_it_holds_and_says_why(
    server: EmbeddedRedis, api: FakeKubeApi, redis: RedisClient, pods: ScaledPods, plan: Plan
) -> None:
    async with running(redis, plan) as url:
        await comes(lambda: acts(url), "it never leads")
        api.is_broken = True

        async def says(text: str) -> bool:
            return text in await explained(url)

        await comes(lambda: says("leader changed"), "it does not say that the API is broken")
        api.is_broken = False
        pods.freezes = True
        await comes(lambda: says("no such worker is registered"), "nobody misses the workers")
        pods.freezes = False

        async def fits() -> bool:
            return not await says("no such worker is registered")

        await comes(fits, "it never recovers")
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/health")).status_code == 200
            metrics = (await client.get(f"{url}/metrics")).text
            wanted = (await client.get(f"{url}/wanted")).json()
    assert wanted == {"prefill": 1, "decode": 1}
    assert 'baton_autoscaler_wanted{role="prefill"} 1.0' in metrics
    assert (api.replicas[PREFILL], api.replicas[DECODE]) == (1, 1)


async def test_before_anything_was_seen_no_number_is_told(
    api: FakeKubeApi,
    redis: RedisClient,
    pods: ScaledPods,
    plan: Plan,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever orders what is wanted keeps what runs while nobody answers."""
    caplog.set_level("INFO")
    api.is_broken = True
    async with running(redis, replace(plan, mode="advise")) as url, httpx.AsyncClient() as client:

        async def says_why() -> bool:
            answers = [await client.get(f"{url}/{path}") for path in ("wanted", "ready")]
            return all(
                answer.status_code == 503 and "leader changed" in answer.text for answer in answers
            )

        async def wants() -> bool:
            return (await client.get(f"{url}/wanted")).status_code == 200

        await comes(says_why, "it does not say why nothing was seen")
        assert "leader changed" in await explained(url)
        assert caplog.text.count("nothing is seen yet: ") == 1
        api.is_broken = False
        await comes(wants, "it never looks again")
        api.is_broken = True
        await comes(lambda: "holds: " in caplog.text, "the log does not say that it holds")
        assert (await client.get(f"{url}/wanted")).status_code == 200


async def test_advice_touches_nothing(
    api: FakeKubeApi, redis: RedisClient, pods: ScaledPods, plan: Plan
) -> None:
    api.rules = set()  # not even reading is needed to decide without a cluster
    alone = replace(plan, mode="advise", place=replace(plan.place, deployments={}))
    loading = asyncio.create_task(_keep_loading(redis))

    async def wants_more() -> bool:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{url}/wanted")
        return answer.status_code == 200 and answer.json()["prefill"] > 1

    async with running(redis, alone) as url:
        await comes(wants_more, "it asks for no more")
    loading.cancel()
    assert api.replicas[PREFILL] == 1 and not api.asked
    assert all(pod.drained_s is None for pod in pods.pods)


async def test_workers_that_do_both_come_and_go_as_one_pool(
    api: FakeKubeApi, redis: RedisClient, tmp_path: Path
) -> None:
    """`--decode` alone; a prefill worker that registers meanwhile is a reason to hold."""
    flags = ("--decode", DECODE, "--decode-replicas", "1-8", "--release", RELEASE, "--port", "0")
    place = ("--namespace", NAMESPACE, "--kubeconfig", str(write_kubeconfig(tmp_path, api.port)))
    made = plan_of(options(*flags, *place, "--mode", "builtin", "--pool", POOL))
    plan = replace(made, every_s=EVERY_S, view=replace(made.view, look_s=LOOK_S))
    registry = RedisWorkerRegistry(redis, Keys(), ttl_s=2.0)
    pods = ScaledPods(api, registry, {"decode": DECODE}, works=True)
    running_pods = asyncio.create_task(pods.run())
    loading = asyncio.create_task(_keep_loading(redis))
    async with running(redis, plan) as url:
        await comes(lambda: api.replicas[DECODE] >= 3, "no workers for the load")
        assert "requests" in await explained(url)
        loading.cancel()
        pods.works = False
        await comes(lambda: api.replicas[DECODE] == 1, "the workers stay without load")
        assert all(pod.drained_s is not None and not pod.has_work_left for pod in pods.gone)
        pods.deployments["prefill"] = PREFILL

        async def holds() -> bool:
            return "name their Deployment too, by --prefill" in await explained(url)

        await comes(holds, "it takes decode workers for all there are")
    assert api.replicas[PREFILL] == 1
    running_pods.cancel()
    with suppress(asyncio.CancelledError):
        await running_pods


async def test_advice_without_a_cluster_goes_by_the_workers_there_are(
    api: FakeKubeApi, redis: RedisClient, plan: Plan
) -> None:
    registry = RedisWorkerRegistry(redis, Keys(), ttl_s=2.0)
    pods = ScaledPods(api, registry, {"decode": DECODE})
    running_pods = asyncio.create_task(pods.run())

    async def wants(*roles: str) -> bool:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{url}/wanted")
        return answer.status_code == 200 and list(answer.json()) == list(roles)

    alone = replace(
        plan,
        mode="advise",
        place=replace(plan.place, deployments={}),
        view=replace(plan_of(options()).view, look_s=LOOK_S),
    )
    async with running(redis, alone) as url:
        await comes(lambda: wants("decode"), "it wants prefill workers of a cell without any")
        pods.deployments["prefill"] = PREFILL
        await comes(lambda: wants("prefill", "decode"), "it does not see the prefill worker")
    running_pods.cancel()
    with suppress(asyncio.CancelledError):
        await running_pods


async def test_an_order_that_was_refused_is_made_again(
    api: FakeKubeApi, redis: RedisClient, pods: ScaledPods, plan: Plan
) -> None:
    """A new status of the pods makes another version of the scale: the first orders conflict."""
    conflicts = 2

    def touch(asked: Asked) -> None:
        nonlocal conflicts
        if asked.verb == "update" and asked.resource == "deployments/scale" and conflicts:
            conflicts -= 1
            api.touch(asked.name)

    api.before = touch
    pods.works = True
    loading = asyncio.create_task(_keep_loading(redis))
    async with running(redis, plan):
        await comes(lambda: api.replicas[PREFILL] >= 3, "it gives up")
    loading.cancel()
    assert not conflicts


async def test_advice_wants_one_fewer_at_once_where_another_scaler_acts(
    api: FakeKubeApi, redis: RedisClient, pods: ScaledPods, plan: Plan
) -> None:
    api.replicas[PREFILL] = 2
    await comes(lambda: len(pods.names("prefill")) == 2, "no pods")

    async def wants_fewer() -> bool:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{url}/wanted")
        return answer.status_code == 200 and answer.json()["prefill"] == 1

    async with running(redis, replace(plan, mode="advise")) as url:
        await comes(wants_fewer, "it wants both")
        async with httpx.AsyncClient() as client:
            told = (await client.get(f"{url}/explain")).json()
            metrics = (await client.get(f"{url}/metrics")).text
    assert told["roles"]["prefill"]["wanted"] == 1, "all of its words say the same"
    assert 'baton_autoscaler_wanted{role="prefill"} 1.0' in metrics
    assert api.replicas[PREFILL] == 2
