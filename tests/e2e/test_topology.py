"""One worker alone gives the answers of two; a port that is taken is one clear error."""

import json
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.e2e.cluster import BATON, Cluster, running
from tests.support.cases.schemas import SCHEMAS

STRUCTURED = ("person", "unicode keys", "tree", "strings", "nullable", "any of records") * 2


@pytest.fixture(scope="module")
def agg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("agg"), "--topology", "agg") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("pd"), "--topology", "pd") as cluster:
        yield cluster


def bodies() -> list[dict[str, Any]]:
    rng = random.Random(4)  # noqa: S311
    return [
        {
            "prompt": [rng.randrange(1000, 4000) for _ in range(num_tokens)],
            "max_tokens": 24,
            "temperature": 0.8 * (num_tokens % 2),
            "seed": num_tokens,
        }
        for num_tokens in (1, 15, 16, 17, 64, 65, 300, 700)
    ]


def test_one_worker_answers_like_two(agg: Cluster, pd: Cluster) -> None:
    alone, apart = agg.answers(bodies()), pd.answers(bodies())
    assert all(stream.complete for stream in (*alone, *apart))
    assert [stream.answer for stream in alone] == [stream.answer for stream in apart]
    assert len({stream.text for stream in alone}) == len(alone)


def test_the_doctor_finds_a_healthy_cell_by_itself(pd: Cluster) -> None:
    """From the record that `baton up` keeps: Redis, secret and admin port are not told to it."""
    assert pd.answer(bodies()[-1]).complete
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(pd.log.parent / "runtime")}
    done = subprocess.run(  # noqa: S603
        [*BATON, "doctor", "--url", pd.url, "--json", "-"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, [line for line in lines if line["level"] != "ok"]) == (0, [])
    seen = {line["check"]: line["seen"] for line in lines}
    assert "KV at 127.0.0.1:" in seen["worker prefill-0"]
    assert "KV by mapped" in seen["prefill-0 -> decode-0"]
    assert {"gateway", "Redis", "Redis policy", "clock", "worker decode-0"} <= seen.keys()


def structured_bodies() -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"Tell me about {name}",
            "max_tokens": 160,
            "temperature": 1.2,
            "seed": seed,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMAS[name]},
            },
        }
        for seed, name in enumerate(STRUCTURED)
    ]


def test_answers_with_a_schema_are_valid_and_the_same(agg: Cluster, pd: Cluster) -> None:
    alone, apart = agg.answers(structured_bodies()), pd.answers(structured_bodies())
    assert [stream.answer for stream in alone] == [stream.answer for stream in apart]
    for stream, name in zip(apart, STRUCTURED, strict=True):
        assert stream.complete, stream
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(json.loads(stream.text))


def test_a_grammar_that_leads_nowhere_is_the_client_s_error(agg: Cluster, pd: Cluster) -> None:
    """It compiles and has a first token, so only the engine that computes the second one sees it.
    Nothing is tried again."""
    body = {
        "prompt": [1000, 1001],
        "max_tokens": 8,
        "guided_grammar": 'start: "a" B\nB: /x[^\\x00-\\U0010FFFF]/',
    }
    for cluster in (agg, pd):
        answer = cluster.client.post("/v1/completions", json={"model": cluster.model(), **body})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_schema", "guided_grammar")
        assert error["message"] == "guided_grammar: no output matches the grammar"
        receipt = cluster.receipt(answer.headers["x-request-id"])
        assert [attempt["end"] for attempt in receipt["attempts"]] == ["failed"]


def test_a_planted_local_prefill_is_counted(agg: Cluster, pd: Cluster) -> None:
    """What the check of a fault-free pd system sees when decode computes a prompt."""
    num_tokens = sum(len(body["prompt"]) for body in bodies())
    agg.answers(bodies())
    agg.wait(lambda: agg.metric("baton_local_prefill_tokens_total") >= num_tokens)
    assert [worker["role"] for worker in agg.workers()] == ["decode"]
    assert set(agg.unwanted_local_prefill()) == {'reason="agg"'}
    assert pd.unwanted_local_prefill() == {}


def test_a_taken_port_is_exit_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*BATON, "up", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("baton: error:") == 1
    assert port in done.stderr
