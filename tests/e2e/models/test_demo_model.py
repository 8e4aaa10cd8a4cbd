"""The demo model through the chat endpoint: what the README promises of it, on unseen prompts."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shared.demo_model.recipe.exact_tasks import held_out_prompts
from tests.e2e.cluster import Cluster, running

pytestmark = pytest.mark.anyio

NUM_PROMPTS = 100
NUM_AT_ONCE = 16
ENOUGH = {"copy": 0.95, "sort": 0.9, "sum": 0.9}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("demo")) as cluster:
        yield cluster


@pytest.mark.parametrize("task", ENOUGH)
async def test_exact_answers(cluster: Cluster, task: str) -> None:
    prompts = held_out_prompts(task, NUM_PROMPTS)
    slots = asyncio.Semaphore(NUM_AT_ONCE)

    async def right(client: httpx.AsyncClient, messages: Any, expected: str) -> bool:
        body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 192}
        async with slots:
            response = await client.post(f"{cluster.url}/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answer: str = response.json()["choices"][0]["message"]["content"]
        return answer == expected

    async with httpx.AsyncClient(timeout=120) as client:
        results = await asyncio.gather(
            *(right(client, messages, expected) for messages, expected in prompts)
        )
    assert sum(results) / len(results) >= ENOUGH[task]
