"""The page of shared/articles: every row once, each figure computed again, no other number."""

import re

import pytest

from tests.support.articles.arithmetic import A100, BLOCK, FUNCTIONS, MODELS
from tests.support.articles.figure import Figure
from tests.support.articles.tables import (
    FIGURES,
    FORMULAS,
    bare_numbers,
    cells_of,
    page,
    rows,
)

README = page("README.md")
FEATURES = ("row", "the articles", "Baton", "state")
ALL_ROWS = [f"A{number}" for number in range(1, 109)]
STATE = re.compile(r"works(, corrected)?|(in part|not)(, corrected)?: .+")


def figures(text: str) -> list[Figure]:
    return [Figure(*cells) for cells in rows(text, FIGURES)]


def misplaced_rows(text: str) -> list[str]:
    """Rows that are missing, listed twice or unknown."""
    found = [row for row, *_ in rows(text, FEATURES)]
    twice = {row for row in found if found.count(row) > 1}
    return sorted({*ALL_ROWS} ^ {*found} | twice)


def without_formula(text: str) -> list[str]:
    """Numbers in prose and in other tables."""
    computed = {*rows(text, FIGURES)}
    lines = (line for line in text.splitlines() if cells_of(line) not in computed)
    return list(bare_numbers("\n".join(lines)))


def test_every_row_is_there_once() -> None:
    assert misplaced_rows(README) == []


def test_every_state_is_one_of_three_and_says_what_lacks() -> None:
    states = [(row, state) for row, *_, state in rows(README, FEATURES)]
    assert [(row, state) for row, state in states if not STATE.fullmatch(state)] == []


@pytest.mark.parametrize("figure", figures(README), ids=lambda one: f"{one.row}-{one.value}")
def test_every_figure_is_what_its_formula_says(figure: Figure) -> None:
    assert figure.wrong == ""


def test_every_row_with_a_wrong_figure_is_marked() -> None:
    wrong = {figure.row for figure in figures(README) if figure.printed}
    marked = {row for row, *_, state in rows(README, FEATURES) if "corrected" in state}
    assert wrong - marked == set()


def test_the_functions_are_those_that_are_explained() -> None:
    explained = {function.strip("`").partition("(")[0] for function, *_ in rows(README, FORMULAS)}
    assert explained == set(FUNCTIONS)
    assert [name for name in MODELS if f"`{name}`" not in README] == []


def test_the_functions_take_what_their_explanations_say() -> None:
    for text in (
        f"in whole blocks of `{BLOCK}` tokens",
        f"an A100's `{A100.matmul_flops_per_s / 1e12:.0f}` TFLOP/s",
        f"/ `{A100.copy_bytes_per_s / 1e12:.0f}` TB/s",
        f"`gpt2_medium` (with a context of `{MODELS['gpt2_medium']['n_positions']}`)",
    ):
        assert text in README


def test_no_number_stands_without_a_formula() -> None:
    assert without_formula(README) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| 36 MiB |", "| 37 MiB |"),
        ("| 2 / 16 / 64 GiB |", "| 2 / 16 / 63 GiB |"),
        ("| 1.25 GiB |", "| 1.26 GiB |"),
        ("| 431 requests |", "| 432 requests |"),
        ("| 4,999,500 tokens |", "| 4,999,501 tokens |"),
        ("| 50.4 % | 74 % |", "| 50.4 % | 50 % |"),
        ("| 3 / 16 / 12.5 GiB |", "| 3 / 16 / 12.5 MiB |"),
        ("| 3 / 16 / 12.5 GiB |", "| 3 / 16 GiB |"),
        ("| 2 GPUs |", "| 2 apples |"),
        ("`kv(gpt2, 1024)`", "`kv(gpt2, 1023)`"),
        ("`padding([2, 500, 10, 480])`", "`padding([2, 500, 10, 481])`"),
        ("`80 * 64`", "`__import__('os')`"),
        ("| a token of 70B |", "| 3 tokens of 70B |"),
    ],
)
def test_a_changed_figure_is_found(old: str, new: str) -> None:
    assert old in README
    changed = README.replace(old, new)
    assert [figure.wrong for figure in figures(changed) if figure.wrong] != []


def test_a_missing_row_and_one_listed_twice_are_found() -> None:
    (line,) = (line for line in README.splitlines() if line.startswith("| A13 |"))
    assert misplaced_rows(README.replace(f"{line}\n", "")) == ["A13"]
    assert misplaced_rows(README.replace(line, f"{line}\n{line}")) == ["A13"]
    assert misplaced_rows(README.replace(line, line.replace("A13", "A130"))) == ["A13", "A130"]


def test_a_number_in_prose_is_found() -> None:
    assert without_formula(f"{README}\nIt takes 17 ms.") == ["17"]
