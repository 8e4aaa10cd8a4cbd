"""Log-probabilities of prompts over HTTP: those of transformers, on agg and pd, in small steps,
among others, again, and after the worker that computed them was killed."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.e2e.cluster import Cluster, running

CHECKPOINT = Path(__file__).parents[3] / "shared" / "demo_model" / "checkpoint"
STEP_TOKENS = "96"
NUM_TOP = 3
MAX_ERROR = 1e-4
LENGTHS = (2, 17, 97, 300)
DELAY_MS = 1500
"""of a prefill, in which its worker is killed"""


@pytest.fixture(scope="module", params=["agg", "pd"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    flags = ("--topology", request.param, "--max-model-len", "1024")
    folder = tmp_path_factory.mktemp(request.param)
    with running(folder, *flags, BATON_MAX_NUM_BATCHED_TOKENS=STEP_TOKENS) as cluster:
        yield cluster


def test_values_equal_transformers_alone_together_and_again(cluster: Cluster) -> None:
    prompts = [prompt(length) for length in LENGTHS]
    alone = [choice for each in prompts for choice in scored(cluster, each)]
    for each, choice in zip(prompts, alone, strict=True):
        check(each, choice)
    with ThreadPoolExecutor(len(prompts)) as pool:
        apart = [found for (found,) in pool.map(lambda each: scored(cluster, each), prompts)]
    assert apart == alone
    assert [shown(choice) for choice in scored(cluster, prompts)] == [*map(shown, alone)]
    plain = [ask(cluster, each)[0]["text"] for each in prompts]
    ends = [choice["text"][-len(text) :] for choice, text in zip(alone, plain, strict=True)]
    assert ends == plain, "asking changes no answer"


def test_only_the_prompt_is_scored(cluster: Cluster) -> None:
    ids = prompt(97)
    (choice,) = scored(cluster, ids, max_tokens=0)
    assert len(choice["logprobs"]["tokens"]) == len(ids)
    check(ids, choice)
    body = {"messages": [{"role": "user", "content": "What is 47 + 38?"}], "prompt_logprobs": 0}
    chat = cluster.client.post("/v1/chat/completions", json={"model": "demo", **body}).json()
    found = chat["prompt_logprobs"]
    assert len(found) == chat["usage"]["prompt_tokens"] and found[0] is None
    assert all(len(each) == 1 for each in found[1:])


def test_a_prefill_worker_that_is_killed_costs_a_pause(tmp_path: Path) -> None:
    ids = prompt(300)
    environment = {
        "BATON_MAX_NUM_BATCHED_TOKENS": STEP_TOKENS,
        "BATON_PLANTED_FAULTS": f"prefill={DELAY_MS}",
    }
    flags = ("--topology", "pd", "--max-model-len", "1024")
    with running(tmp_path, *flags, **environment) as cluster, ThreadPoolExecutor(1) as pool:
        (prefill,) = cluster.workers("prefill")
        asked: Future[list[Any]] = pool.submit(scored, cluster, ids)
        cluster.wait(lambda: cluster.status()["requests"]["live"] == 1)
        time.sleep(DELAY_MS / 3000)
        os.kill(prefill["pid"], signal.SIGKILL)
        (choice,) = asked.result(60)
        check(ids, choice)
        assert cluster.metric("baton_attempts_total") > 1


def prompt(length: int) -> list[int]:
    text = "Once upon a time there was a little dog. What is 47 + 38? It is 85. " * 30
    ids: list[int] = oracle()[0](text).input_ids
    return ids[:length]


def ask(cluster: Cluster, ids: Any, **fields: Any) -> list[Any]:
    body = {"model": "demo", "prompt": ids, "max_tokens": 3, "temperature": 0, **fields}
    response = cluster.client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    choices: list[Any] = response.json()["choices"]
    return choices


def scored(cluster: Cluster, ids: Any, **fields: Any) -> list[Any]:
    return ask(cluster, ids, echo=True, logprobs=NUM_TOP, prompt_logprobs=NUM_TOP, **fields)


def shown(choice: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in choice.items() if name != "index"}


def check(ids: list[int], choice: dict[str, Any]) -> None:
    """Both shapes of the values against one full pass."""
    with torch.inference_mode():
        logits = oracle()[1](input_ids=torch.tensor([ids])).logits[0]
    table = logits.float().log_softmax(-1)
    expected = [float(table[at - 1, ids[at]]) for at in range(1, len(ids))]
    listed, by_id = choice["logprobs"], choice["prompt_logprobs"]
    assert listed["token_logprobs"][0] is by_id[0] is None
    assert listed["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=MAX_ERROR)
    assert len(by_id) == len(ids)
    for at in range(1, len(ids)):
        told = by_id[at]
        assert told[str(ids[at])]["logprob"] == pytest.approx(expected[at - 1], abs=MAX_ERROR)
        best = table[at - 1].topk(NUM_TOP)
        ranked = sorted(told.values(), key=lambda each: int(each["rank"]))[:NUM_TOP]
        values = [each["logprob"] for each in ranked]
        assert values == pytest.approx(best.values.tolist(), abs=MAX_ERROR)


@cache
def oracle() -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    return tokenizer, model.eval()
