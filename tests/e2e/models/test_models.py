"""Two models behind one address, each with two workers, against a gateway of each alone.

Guards: a text read or written by another model's tokenizer or template, a request on another
model's worker, one model that goes down with the other.
"""

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.cli import status
from shared.state.embedded import EmbeddedRedis
from tests.e2e.cluster import Cell, Cluster
from tests.support.models.text_models import byte_level_tokenizer, write_text_model
from tests.support.models.tiny_model import TINY, write_checkpoint

pytestmark = pytest.mark.redis
OTHER = "org/other"
MODELS = ("demo", OTHER)
TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}: {{ message['content'] }}]{% endfor %}"
)
MESSAGES = [{"role": "user", "content": "hello world"}]


def other_model(folder: Path) -> Path:
    tokenizer = byte_level_tokenizer()
    path = write_text_model(folder / "other", tokenizer, TEMPLATE)
    write_checkpoint(path, {**TINY, "vocab_size": tokenizer.get_vocab_size()})
    return path


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cell, list[Cluster]]]:
    """The one of both models, then those of each alone."""
    folder = tmp_path_factory.mktemp("cell")
    other = ("--model", str(other_model(folder)), "--served-model-name", OTHER)
    with EmbeddedRedis() as server, closing(Cell(folder, server)) as cell, ExitStack() as stack:
        for name, flags in (("demo", ()), ("other", other)):
            for role in ("prefill", "decode"):
                id_flags = ("--worker-id", f"{name}-{role}", "--kv-blocks", "512")
                cell.serve(role, *id_flags, "--threads", "1", *flags, name=f"{name}-{role}")
        both = ("--more-models", f"{OTHER}={other[1]}")
        clusters = [
            stack.enter_context(cell.gateway(name, "--topology", "pd", *flags, num_workers=2))
            for name, flags in (("both", both), ("demo-alone", ()), ("other-alone", other))
        ]
        clusters[0].wait(lambda: len(status_of(clusters[0], OTHER)["workers"]) == 2)
        yield cell, clusters


def status_of(cluster: Cluster, model: str) -> dict[str, Any]:
    body: dict[str, Any] = cluster.client.get("/v1/baton/status", params={"model": model}).json()
    return body


def asked(cluster: Cluster, path: str, model: str, **fields: Any) -> dict[str, Any]:
    given = {"model": model, "temperature": 0, "max_tokens": 24, **fields}
    answer = cluster.client.post(path, json=given)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def chat(cluster: Cluster, model: str) -> dict[str, Any]:
    return asked(cluster, "/v1/chat/completions", model, messages=MESSAGES)


def test_each_answers_as_where_it_is_alone(gateways: tuple[Cell, list[Cluster]]) -> None:
    _, (both, *alone) = gateways
    for _ in range(3):
        for model, cluster in zip(MODELS, alone, strict=True):
            mixed, single = chat(both, model), chat(cluster, model)
            assert mixed["model"] == model
            assert mixed["choices"] == single["choices"]
            assert mixed["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
            text = asked(both, "/v1/completions", model, prompt="hello world")
            assert (
                text["choices"][0]["text"]
                == (
                    asked(cluster, "/v1/completions", model, prompt="hello world")["choices"][0][
                        "text"
                    ]
                )
            )
    counts = [chat(both, model)["usage"]["prompt_tokens"] for model in MODELS]
    assert counts[0] != counts[1], "the templates differ"


def test_a_worker_of_one_never_serves_the_other(gateways: tuple[Cell, list[Cluster]]) -> None:
    _, (both, *_) = gateways
    for model, name in zip(MODELS, ("demo", "other"), strict=True):
        for _ in range(4):
            receipt = both.receipt(chat(both, model)["id"])
            used = {
                attempt[role] for attempt in receipt["attempts"] for role in ("prefill", "decode")
            }
            assert used == {f"{name}-prefill", f"{name}-decode"}
        listed = {worker["id"] for worker in status_of(both, model)["workers"]}
        assert listed == {f"{name}-prefill", f"{name}-decode"}


def test_both_are_listed_and_others_refused(gateways: tuple[Cell, list[Cluster]]) -> None:
    _, (both, *_) = gateways
    cards = both.client.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == list(MODELS)
    assert both.client.get(f"/v1/models/{OTHER}").json()["max_model_len"] == 512
    refused = both.client.post("/v1/completions", json={"model": "third", "prompt": "x"})
    assert refused.status_code == 404
    assert "use 'demo' or 'org/other'" in refused.json()["error"]["message"]
    for model in MODELS:
        fields = {"model": model, "prompt": "hello world"}
        ids = both.client.post("/tokenize", json=fields).json()["tokens"]
        told = both.client.post("/detokenize", json={"model": model, "tokens": ids}).json()
        assert told["prompt"] == "hello world"


def test_the_name_is_read_as_json_has_it(gateways: tuple[Cell, list[Cluster]]) -> None:
    """The field at the top and no other, however it is written, in a body of any size."""
    _, (both, *_) = gateways
    alone = {model: tokens_of(both, {"model": model, "prompt": "hello world"}) for model in MODELS}
    assert alone["demo"] != alone[OTHER]
    for size in (0, 8_000, 100_000):
        nested = {"metadata": {"model": OTHER}, "padding": "x" * size}
        assert tokens_of(both, {"prompt": "hello world", **nested}) == alone["demo"]
        named = {
            "model": OTHER,
            "prompt": "hello world",
            "padding": [{"model": "demo"}] * (size // 9),
        }
        assert tokens_of(both, named) == alone[OTHER]
        escaped = json.dumps(named).replace('"model"', '"mod\\u0065l"', 1)
        assert tokens_of(both, escaped) == alone[OTHER]


@pytest.mark.clock
def test_a_body_that_is_long_to_read_stops_nobody(gateways: tuple[Cell, list[Cluster]]) -> None:
    _, (both, *_) = gateways
    body = '{"x": [' + '{"model": "a"},' * 250_000 + '0], "model": "demo", "prompt": "x"}'
    worst_s = 0.0
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(tokens_of, both, body)
        while not reading.done():
            began_s = time.monotonic()
            assert both.client.get("/health").is_success
            worst_s = max(worst_s, time.monotonic() - began_s)
        assert reading.result()
    assert worst_s < 0.5


def tokens_of(cluster: Cluster, body: dict[str, Any] | str) -> list[int]:
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=cluster.url, timeout=30) as client:
        answer = client.post("/tokenize", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["tokens"]
    return ids


def test_operators_see_both(
    gateways: tuple[Cell, list[Cluster]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, (both, *_) = gateways
    rows = both.client.get("/v1/baton/requests", params={"limit": "5", "model": OTHER}).json()
    assert {row["workers"]["decode"] for row in rows["requests"]} == {"other-decode"}
    for model in MODELS:
        live = both.client.get("/v1/baton/live", params={"model": model}).json()
        assert (live["model"], live["models"]) == (model, list(MODELS))
        assert both.samples("baton_serves")[f'model="{model}"'] == 1
    assert both.client.get("/v1/baton/status", params={"model": "x"}).status_code == 404
    print_status(both.url)
    shown = capsys.readouterr().out
    assert "demo-prefill" in shown and "other-prefill" in shown and OTHER in shown


def print_status(url: str) -> None:
    parser = argparse.ArgumentParser()
    status.add_arguments(parser)
    assert status.run(parser.parse_args(["--url", url])) == 0


def test_one_goes_on_without_the_other(gateways: tuple[Cell, list[Cluster]]) -> None:
    cell, (both, *_) = gateways
    for role in ("prefill", "decode"):
        cell.stop(f"other-{role}")
    both.wait(lambda: not ready(both)["models"][OTHER]["serves"])
    refused = both.client.post("/v1/completions", json={"model": OTHER, "prompt": "x"})
    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    assert chat(both, "demo")["choices"]
    told = ready(both)
    assert (told["serves"], told["models"]["demo"]["serves"]) == (True, True)
    for role in ("prefill", "decode"):
        cell.serve_again(role, f"other-{role}")
    both.wait(lambda: ready(both)["models"][OTHER]["serves"], 60)
    assert chat(both, OTHER)["choices"]


def ready(cluster: Cluster) -> dict[str, Any]:
    answer = cluster.client.get("/ready")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body
