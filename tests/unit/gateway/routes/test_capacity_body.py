"""The body of /v1/capacity: sums over workers, and a query that is read strictly."""

from typing import Any

import pytest

from services.gateway.owner.links.token_rates import LENGTH_S, TokenRates
from services.gateway.routes.capacity import Asked, asked_of, capacity_body
from shared.errors import RequestError

MIB = 2**20
BLOCK_BYTES = 2 * MIB


def worker(name: str, role: str, blocks: int, free: int, ranks: int = 1) -> dict[str, Any]:
    memory = {"weights": 100 * MIB, "kv": blocks * BLOCK_BYTES // ranks}
    return {
        "id": name,
        "role": role,
        "kv": {"total": blocks, "free": free - 1, "cached": 1, "held": blocks - free},
        "ranks": ranks,
        "memory_bytes": memory,
        "rates": {"prompt_tokens_s": 500.0, "tokens_s": 1000.0 if role == "decode" else 1.0},
    }


STATUS = {
    "model": "m",
    "max_model_len": 4096,
    "block_size": 16,
    "workers": [
        worker("p", "prefill", 64, 64),
        worker("d0", "decode", 128, 100, 2),
        worker("d1", "decode", 100, 10),
    ],
}


def test_sequences_are_those_that_whole_workers_hold() -> None:
    """A sequence is on one worker: 100 and 128 blocks hold three and four of 32, not seven."""
    body = capacity_body(STATUS, Asked((500, 1600), None))
    assert body["sequences"] == [
        {"tokens": 500, "fit": 3 + 4, "fit_now": 3 + 0},
        {"tokens": 1600, "fit": 2, "fit_now": 1},
    ]
    assert body["kv_token_bytes"] == BLOCK_BYTES // 16
    assert body["pools"]["decode"] == {
        "workers": 2,
        "ranks": 3,
        "kv_tokens": 228 * 16,
        "prompt_tokens_s": 1000.0,
        "tokens_s": 2000.0,
    }
    assert body["usd_per_million_tokens"] is None


def test_none_fits_that_is_longer_than_a_sequence_can_be() -> None:
    roomy = {**STATUS, "workers": [worker("d", "decode", 1024, 1024)]}
    assert capacity_body(roomy, Asked((4096, 4097), None))["sequences"] == [
        {"tokens": 4096, "fit": 4, "fit_now": 4},
        {"tokens": 4097, "fit": 0, "fit_now": 0},
    ]


def test_a_million_tokens_cost_the_hour_of_all_gpus_over_its_tokens() -> None:
    body = capacity_body(STATUS, Asked((), 2.5))
    assert body["usd_per_million_tokens"] == pytest.approx(4 * 2.5 / (2001 * 3600 / 1e6), abs=1e-6)
    assert [row["tokens"] for row in body["sequences"]] == [1024, 4096]
    idle = {**STATUS, "workers": []}
    assert capacity_body(idle, Asked((), 2.5))["usd_per_million_tokens"] is None


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ([("tokens", "0")], "tokens"),
        ([("tokens", "1,x")], "tokens"),
        ([("tokens", "\u0661")], "tokens"),
        ([("tokens", "1" * 5000)], "tokens"),
        ([("tokens", "1," * 40 + "1")], "tokens"),
        ([("usd_per_gpu_hour", "nan")], "usd_per_gpu_hour"),
        ([("usd_per_gpu_hour", "-1")], "usd_per_gpu_hour"),
        ([("price", "1")], "price"),
    ],
)
def test_a_bad_query_is_named(query: list[tuple[str, str]], param: str) -> None:
    with pytest.raises(RequestError) as told:
        asked_of(query)
    assert told.value.param == param
    assert told.value.message.startswith(f"{param}: ")


def test_a_query_may_name_lengths_and_a_price() -> None:
    asked = asked_of([("tokens", "100, 200"), ("tokens", "300"), ("usd_per_gpu_hour", "2.5")])
    assert asked == Asked((100, 200, 300), 2.5)


def test_rates_are_those_of_the_last_minute() -> None:
    rates = TokenRates()
    assert rates.per_s() == {"prompt_tokens_s": 0.0, "tokens_s": 0.0}
    for second in range(300):
        sampled = 10 * second if second < 200 else 2000 + 50 * (second - 200)
        rates.note(float(second), {"tokens_sampled": sampled, "prompt_tokens:computed": second})
        rates.note(second + 0.5, {})
    assert len(rates._told) <= LENGTH_S + 2
    assert rates.per_s() == {"prompt_tokens_s": 1.0, "tokens_s": 50.0}
