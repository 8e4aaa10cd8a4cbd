"""Every answer with a schema is complete JSON that is valid against it, from a random model."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import torch

from shared.grammar import source
from shared.protocol import Sampling
from tests.support.cases.schemas import SCHEMAS
from tests.support.models.structured_model import (
    StructuredModel,
    run_all,
    spec_of,
    structured_model,
    tokens_of,
)

NUM_ANSWERS = 1000
MAX_TOKENS = 900
TEMPERATURES = (1.0, 0.7, 1.5, 0.0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StructuredModel:
    return structured_model(tmp_path_factory.mktemp("structured"))


def prompt(seed: int) -> tuple[int, ...]:
    return tuple(range(40 + seed % 97, 60 + seed % 97))


def sampling(
    model: StructuredModel, seed: int, grammar: str, max_tokens: int = MAX_TOKENS
) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        temperature=TEMPERATURES[seed % len(TEMPERATURES)],
        top_p=0.9 if seed % 3 == 0 else 1.0,
        seed=seed,
        eos_token_ids=model.eos_token_ids,
        grammar=grammar,
    )


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return False
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value)


def test_every_answer_is_valid(model: StructuredModel) -> None:
    assert len(SCHEMAS) == 50
    names = list(SCHEMAS)
    asked = {f"r{number}": names[number % len(names)] for number in range(NUM_ANSWERS)}
    specs = [
        spec_of(rid, prompt(seed), sampling(model, seed, source.json_schema(SCHEMAS[name])))
        for seed, (rid, name) in enumerate(asked.items())
    ]
    runs = run_all(model.engine(), specs)
    reasons: Counter[str | None] = Counter()
    for rid, name in asked.items():
        text = model.text(tokens_of(runs[rid]))
        reasons[runs[rid][-1].finish_reason] += 1
        assert is_valid(text, SCHEMAS[name]), (name, text)
    assert reasons == {"stop": NUM_ANSWERS}
    assert len({model.text(tokens_of(told)) for told in runs.values()}) > NUM_ANSWERS // 2


def test_the_model_alone_says_no_json(model: StructuredModel) -> None:
    """What the test above shows is the grammar's work."""
    specs = [spec_of(f"r{seed}", prompt(seed), sampling(model, seed, "", 80)) for seed in range(30)]
    runs = run_all(model.engine(), specs)
    assert not any(is_valid(model.text(tokens_of(told)), {}) for told in runs.values())
