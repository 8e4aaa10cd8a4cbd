"""How many workers of each role: the split that answers most for its number of workers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.byte_size import GIB
from services.cli.capacity.devices import GPUS_MIB, RATES, Device, named_gpu
from services.cli.capacity.estimate import estimate
from services.cli.capacity.split import MOST_WORKERS, Split, best_split, split_of
from shared.model.shapes import SHAPES
from tests.support.cases.known_models import question

ASKED = question(SHAPES["llama-3.1-8b"], named_gpu("H100"), dtype="auto")


def split(prompt: int, answer: int) -> Split:
    asked = replace(ASKED, prompt=prompt, answer=answer)
    found = split_of(asked, estimate(asked))
    assert found is not None
    return found


@given(prefill_s=st.floats(1e-4, 10), decode_s=st.floats(1e-4, 10))
def test_no_other_split_answers_more_for_its_workers(prefill_s: float, decode_s: float) -> None:
    chosen = best_split(prefill_s, decode_s, 1)
    rate = chosen.requests_per_s / (chosen.prefill + chosen.decode)
    for prefill in range(1, MOST_WORKERS):
        for decode in range(1, MOST_WORKERS - prefill + 1):
            other = replace(chosen, prefill=prefill, decode=decode)
            assert other.requests_per_s / (prefill + decode) <= rate * (1 + 1e-9)


def test_equal_work_is_one_to_one_and_the_smaller_of_equals() -> None:
    assert (best_split(0.1, 0.1, 1).prefill, best_split(0.1, 0.1, 1).decode) == (1, 1)
    assert (best_split(0.1, 0.3, 1).prefill, best_split(0.1, 0.3, 1).decode) == (1, 3)


def test_longer_prompts_want_more_prefill_and_longer_answers_more_decode() -> None:
    def share(found: Split) -> float:
        return found.prefill / (found.prefill + found.decode)

    assert share(split(16_000, 100)) > share(split(1_000, 100)) > share(split(1_000, 2_000))
    assert split(16_000, 100).prefill_s > split(1_000, 100).prefill_s


def test_a_request_takes_its_share_of_the_steps_that_it_is_in() -> None:
    """By hand: weights of 8.03 G parameters less the embedding, KV of 128 KiB a token."""
    found = split(2_000, 200)
    kv_bytes = 128 * 1024 * (2_000 + 100)
    weights_bytes = 2 * (8.03e9 - 128256 * 4096)
    step_s = (weights_bytes + found.sequences * kv_bytes) / RATES["H100"][0]
    assert found.sequences == estimate(ASKED).num_blocks // (2_208 // 16)
    assert found.decode_s == pytest.approx(200 * step_s / found.sequences, rel=0.01)
    least_s = 2 * 2_000 * (8.03e9 - 2 * 128256 * 4096) / RATES["H100"][1]
    assert least_s < found.prefill_s < 1.2 * least_s


def test_nothing_is_said_where_nothing_is_known() -> None:
    capacity = estimate(ASKED)
    assert split_of(replace(ASKED, answer=100, prompt=0), capacity) is None
    other = replace(ASKED, device=Device("a GPU of 80 GiB", 80 * GIB), prompt=100, answer=100)
    assert split_of(other, capacity) is None
    assert RATES.keys() == GPUS_MIB.keys()
