"""The sampling kernels against their torch reference; interpreted where there is no GPU."""

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.sampling import reference as reference_sampling
from kernels.sampling import rows as fields
from kernels.sampling.adjust import adjust_logits
from kernels.sampling.choose_tokens import choose_tokens
from kernels.sampling.peaks import peaks_kernel
from kernels.sampling.rows import GREEDY, MAX_VOCAB, ORDERED, PLAIN, SamplingScratch, weight_key

pytestmark = pytest.mark.filterwarnings(  # Triton's interpreter, for a loop over a loaded number
    "ignore:Conversion of an array with ndim:DeprecationWarning",
    "ignore:invalid value encountered:RuntimeWarning",
)
INTERPRETED = isinstance(peaks_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
TEMPERATURES = (1e-3, 0.3, 0.7, 1.0, 1.7, 100.0)
NUM_ROWS = 20


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def entry(kind: int, **values: Any) -> np.ndarray:
    """One row of the table; floats by name."""
    numbers = {
        "SEED": values.get("seed", 0),
        "POSITION": values.get("position", 5),
        "TEMPERATURE": np.float32(values.get("temperature", 1.0)).view(np.int32),
        "TOP_K": values.get("top_k", 0),
        "TOP_P": np.float64(values.get("top_p", 1.0)).view(np.int64),
        "LEAST_KEY": weight_key(int(values.get("min_p", 0.0) * 2**40)),
        "KIND": kind,
        "ADJUSTED": -1,
        "COUNTS": -1,
        "BIAS": -1,
    }
    row = np.zeros(fields.FIELDS, dtype=np.int64)
    for name, number in numbers.items():
        row[getattr(fields, name)] = number
    return row


def table_of(entries: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(entries)).to(DEVICE)


def random_entries(rng: random.Random, vocab_size: int, kinds: tuple[int, ...]) -> list[np.ndarray]:
    return [
        entry(
            rng.choice(kinds),
            seed=rng.randrange(-(2**63), 2**63),
            position=rng.randrange(2**31),
            temperature=rng.choice(TEMPERATURES),
            top_k=rng.choice([0, 1, 2, 50, vocab_size - 1, vocab_size, 10**9]),
            top_p=rng.choice([1.0, 0.9999, 0.9, 0.5, 0.01, 1e-9]),
            min_p=rng.choice([0.0, 0.0, 1e-6, 0.1, 0.5, 1.0]),
        )
        for _ in range(NUM_ROWS)
    ]


def random_logits(rng: random.Random, vocab_size: int) -> torch.Tensor:
    """Of an eighth each: many ties, and no two weights that exp and exp2 could order otherwise."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    logits = torch.randn(NUM_ROWS, vocab_size, generator=generator) * rng.choice([0.5, 1, 4])
    logits = (logits * 8).round() / 8
    logits[torch.rand(logits.shape, generator=generator) < 0.1] = -torch.inf
    logits[:, rng.randrange(vocab_size)] = 0.5
    return logits.to(DEVICE)


def chosen(
    logits: torch.Tensor,
    rows: torch.Tensor | None,
    kinds: tuple[int, ...] = (GREEDY, PLAIN, ORDERED),
    multiprocessors: int = 1,
) -> list[int]:
    scratch = SamplingScratch.allocate(len(logits), logits.shape[1], DEVICE)
    if INTERPRETED:
        scratch = dataclasses.replace(scratch, num_multiprocessors=multiprocessors)
    token_ids = torch.full((len(logits),), -7, device=DEVICE)
    choose_tokens(logits, rows, frozenset(kinds), scratch, token_ids)
    return token_ids.tolist()


def expected(logits: torch.Tensor, rows: torch.Tensor | None) -> list[int]:
    token_ids = torch.empty(len(logits), dtype=torch.int64)
    reference_sampling.choose_tokens(logits, rows, token_ids)
    return token_ids.tolist()


@pytest.mark.parametrize("vocab_size", [1, 2, 97, 1000, 4097])
def test_every_kind_of_row_gets_the_references_token(vocab_size: int) -> None:
    rng = random.Random(vocab_size)  # noqa: S311
    rows = table_of(random_entries(rng, vocab_size, (GREEDY, PLAIN, ORDERED, ORDERED)))
    logits = random_logits(rng, vocab_size)
    assert chosen(logits, rows) == expected(logits, rows)


@pytest.mark.parametrize("kind", [PLAIN, ORDERED])
def test_one_other_parameter_is_found(kind: int) -> None:
    """The comparison above can fail: of each row another seed, or another temperature."""
    rng = random.Random(kind)  # noqa: S311
    entries = random_entries(rng, 97, (kind,))
    logits = random_logits(rng, 97)
    wanted = expected(logits, table_of(entries))
    for field, number in ((fields.SEED, 1), (fields.TEMPERATURE, np.float32(9).view(np.int32))):
        changed = [item.copy() for item in entries]
        for item in changed:
            item[field] = number
        assert chosen(logits, table_of(changed)) != wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_greedy_takes_the_lowest_of_equal_ids(dtype: torch.dtype) -> None:
    logits = random_logits(random.Random(2), 4097).to(dtype)  # noqa: S311
    logits[3] = -torch.inf
    logits[4, 4000], logits[4, 17], logits[4, 4096] = 20, 20, 20
    for multiprocessors in (1, 132):
        ids = chosen(logits, None, (GREEDY,), multiprocessors)
        assert ids == expected(logits, None)
        assert (ids[3], ids[4]) == (0, 17)


def test_one_larger_logit_is_found() -> None:
    logits = random_logits(random.Random(2), 4097)  # noqa: S311
    wanted = expected(logits, None)
    for row in (0, 7, NUM_ROWS - 1):
        changed = logits.clone()
        changed[row, (wanted[row] + 1) % 4097] = 99
        different = [a != b for a, b in zip(chosen(changed, None, (GREEDY,)), wanted, strict=True)]
        assert different == [other == row for other in range(NUM_ROWS)]


def test_rows_of_a_wider_tensor() -> None:
    rng = random.Random(8)  # noqa: S311
    rows = table_of(random_entries(rng, 97, (GREEDY, PLAIN, ORDERED)))
    logits = random_logits(rng, 97)
    wide = torch.full((NUM_ROWS, 301), 50.0, device=DEVICE)
    wide[:, 3:100] = logits
    assert chosen(wide[:, 3:100], rows) == expected(logits, rows)


def test_sixteen_bits_are_read_as_they_are() -> None:
    rng = random.Random(8)  # noqa: S311
    rows = table_of(random_entries(rng, 97, (GREEDY, PLAIN, ORDERED)))
    logits = random_logits(rng, 97).half()
    assert chosen(logits, rows) == expected(logits, rows)


def test_equal_weights_are_taken_in_the_order_of_ids() -> None:
    """All of one weight: top-k and top-p keep the lowest ids, whatever the vocabulary."""
    logits = torch.full((60, 5000), 1.5, device=DEVICE)
    rows = [entry(ORDERED, seed=seed, top_k=3) for seed in range(30)]
    rows += [entry(ORDERED, seed=seed, top_p=0.002) for seed in range(30)]
    ids = chosen(logits, table_of(rows))
    assert ids == expected(logits, table_of(rows))
    assert set(ids[:30]) == {0, 1, 2} and 5 < len(set(ids[30:])) <= max(ids[30:]) + 1 <= 10


def test_a_key_determines_and_orders_its_weight() -> None:
    rng = random.Random(1)  # noqa: S311
    weights = [rng.randrange(2 ** rng.randrange(1, 41)) for _ in range(500)]
    floats = sorted({int(np.float32(weight)) for weight in weights} | {0, 1, 2**23, 2**24, 2**40})
    keys = [weight_key(weight) for weight in floats]
    assert keys == sorted(set(keys)) and keys[-1] == 18 * 2**23
    for weight in weights:
        assert weight_key(weight - 1) <= weight_key(weight) <= weight_key(weight + 1)


def test_bias_penalties_and_masks_by_hand() -> None:
    row = entry(GREEDY)
    row[[fields.ADJUSTED, fields.COUNTS, fields.BIAS]] = [1, 2, 0]
    for field, value in ((fields.REPETITION, 2.0), (fields.FREQUENCY, 0.25)):
        row[field] = np.float32(value).view(np.int32)
    row[fields.PRESENCE] = np.float32(0.5).view(np.int32)
    row[fields.ENDINGS], row[fields.NUM_ENDINGS] = 2 * fields.FIELDS, 1
    row[fields.ALLOWED] = 2 * (2 * fields.FIELDS + 1)
    lists = np.array([5, 0b1011111], dtype=np.int64)
    rows = table_of([entry(GREEDY), row, lists])
    logits = torch.tensor([[9.0] * 7, [4.0, -3.0, 2.0, 1.0, 0.5, 7.0, 6.0]], device=DEVICE)
    adjusted = torch.zeros(3, 7, device=DEVICE)
    bias = torch.zeros(1, 7, device=DEVICE)
    bias[0, 1] = 5.0
    counts = torch.zeros(3, 7, dtype=torch.int32, device=DEVICE)
    counts[2, :4] = torch.tensor([1, 2, 4, 0], dtype=torch.int32)
    adjust_logits(logits, rows, adjusted, bias, counts)
    low = -torch.inf
    assert adjusted[1].tolist() == [2.0, 1.0 - 0.75, 1.0 - 1.25, 1.0, 0.5, low, 6.0]
    assert not adjusted[[0, 2]].any()
    token_ids = torch.empty(2, dtype=torch.int64, device=DEVICE)
    scratch = SamplingScratch.allocate(2, 7, DEVICE)
    for number in (2, 3):
        choose_tokens(logits, rows, frozenset({GREEDY}), scratch, token_ids, adjusted, counts)
        assert token_ids.tolist() == [0, 6]
        assert counts[2].tolist() == [1, 2, 4, 0, 0, 0, number]
    assert not counts[:2].any()


def test_bfloat16_is_refused_by_the_interpreter() -> None:
    logits = torch.zeros(1, 64, dtype=torch.bfloat16, device=DEVICE)
    logits[0, 9] = 1
    if INTERPRETED:
        with pytest.raises(TypeError, match="bfloat16"):
            chosen(logits, None, (GREEDY,))
    else:
        assert chosen(logits, None, (GREEDY,)) == [9]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"logits": torch.zeros(2, 3, 64)}, ValueError),
        ({"logits": torch.zeros(3, 64)}, ValueError),
        ({"logits": torch.zeros(2, 128)[:, ::2]}, ValueError),
        ({"logits": torch.zeros(2, 5000)}, ValueError),
        ({"logits": torch.zeros(2, 64, dtype=torch.float64)}, TypeError),
        ({"rows": torch.zeros(3, dtype=torch.int64)}, TypeError),
        ({"rows": torch.zeros(99, dtype=torch.int32)}, TypeError),
        ({"kinds": frozenset({PLAIN})}, ValueError),
        ({"token_ids": torch.zeros(3, dtype=torch.int64)}, TypeError),
        ({"token_ids": torch.zeros(2, dtype=torch.int32)}, TypeError),
        ({"token_ids": torch.zeros(2, dtype=torch.int64, device="meta")}, ValueError),
        ({"adjusted": torch.zeros(1, 63)}, ValueError),
        ({"counts": torch.zeros(1, 64)}, TypeError),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    arguments = {
        "logits": torch.zeros(2, 64),
        "rows": None,
        "kinds": frozenset({GREEDY}),
        "scratch": SamplingScratch.allocate(2, 64, "cpu"),
        "token_ids": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(error):
        choose_tokens(**arguments | change)


def test_a_vocabulary_has_a_limit() -> None:
    for size in (0, MAX_VOCAB + 1):
        with pytest.raises(ValueError, match="vocabulary"):
            SamplingScratch.allocate(1, size, "cpu")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"logits": torch.zeros(64)}, ValueError),
        ({"rows": torch.zeros(3, dtype=torch.int64)}, TypeError),
        ({"adjusted": torch.zeros(1, 63)}, ValueError),
        ({"adjusted": torch.zeros(1, 64, dtype=torch.float16)}, TypeError),
        ({"bias": torch.zeros(1, 64, device="meta")}, ValueError),
        ({"counts": torch.zeros(1, 64)}, TypeError),
    ],
)
def test_tables_that_do_not_fit_are_refused(change: dict[str, Any], error: type[Exception]) -> None:
    arguments: dict[str, Any] = {
        "logits": torch.zeros(1, 64),
        "rows": torch.zeros(fields.FIELDS, dtype=torch.int64),
        "adjusted": torch.zeros(1, 64),
    }
    with pytest.raises(error):
        adjust_logits(**arguments | change)
