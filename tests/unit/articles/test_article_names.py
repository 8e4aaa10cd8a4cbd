"""What the pages of shared/articles name exists."""

import re
from itertools import chain

import pytest

from tests.support.articles.arithmetic import MODELS
from tests.support.articles.names import PLACE, unknown
from tests.support.articles.tables import FIGURES, FOLDER, FORMULAS, page, rows, spans

PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
TERMS = rows(page("glossary.md"), ("term", "what it is", "where"))


def formulas(text: str) -> set[str]:
    """What test_articles.py computes, and says of its functions."""
    functions = (spans(cell) for row in rows(text, FORMULAS) for cell in row[:2])
    figures = (spans(formula) for _, _, formula, *_ in rows(text, FIGURES))
    return {*MODELS, *chain(*functions, *figures)}


@pytest.mark.parametrize("name", PAGES)
def test_whatever_is_named_exists(name: str) -> None:
    named = {*spans(page(name))} - formulas(page(name))
    assert [text for span in sorted(named) if (text := unknown(span))] == []


def test_every_term_has_a_sentence_and_a_place() -> None:
    assert [term for term, sentence, _ in TERMS if not sentence] == []
    assert [place for *_, place in TERMS if not PLACE.fullmatch(place.strip("`"))] == []


def test_terms_are_listed_once_and_in_order() -> None:
    terms = [re.sub(r"\W", "", term.lower()) for term, *_ in TERMS]
    assert terms == sorted({*terms})


@pytest.mark.parametrize(
    "span",
    [
        "shared/kv/vanished.py",
        "shared/kv/layout.py:vanished",
        "baton vanish",
        "baton bench vanished",
        "baton capacity --vanished",
        "baton autoscaler vanish",
        "--vanished",
        "baton_vanished_total",
        "make vanished",
        "/v1/vanished",
        "a message that nobody says",
    ],
)
def test_what_does_not_exist_is_found(span: str) -> None:
    assert unknown(span) != ""
