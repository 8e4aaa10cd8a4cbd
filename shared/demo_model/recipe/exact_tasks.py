"""The three tasks whose answers can be checked exactly: copy, sort and sum.

A hash of the content decides whether an item belongs to training or is held out, never the
wording of the question: `a + b` and `b + a` share one fate, so do all orders of a list. The
training generators draw again when they meet a held-out item; `held_out_prompts` does the
reverse. Each task also keeps a few wordings (`UNSEEN_FORMS`) that training never uses.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from random import Random

from shared.demo_model.chat import Exchange, Message, question
from shared.demo_model.recipe.corpus_files import sentences, words
from shared.demo_model.recipe.wordings import (
    COPY_FORMS,
    NUMBER_SORT_FORMS,
    REVERSE_SORT_FORMS,
    SUM_FORMS,
    UNSEEN_FORMS,
    WORD_SORT_FORMS,
)

HELD_OUT_PERCENT = 20

CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"


def is_held_out(key: str) -> bool:
    """Whether the item named by `key` is kept out of training."""
    digest = blake2b(key.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 100 < HELD_OUT_PERCENT


def sum_key(first: int, second: int) -> str:
    """The identity of a sum, the same for both orders."""
    return f"sum {min(first, second)} {max(first, second)}"


def sort_key(items: Sequence[str]) -> str:
    """The identity of a list, the same for all orders."""
    return "sort " + " ".join(sorted(items))


def copy_key(text: str) -> str:
    """The identity of a text to copy."""
    return "copy " + text


def made_up_word(rng: Random) -> str:
    """A word that does not exist, so that copying cannot lean on memory."""
    if rng.random() < 0.25:
        return "".join(rng.choice(CONSONANTS + VOWELS) for _ in range(rng.randint(2, 8)))
    return "".join(
        rng.choice(CONSONANTS) + rng.choice(VOWELS) + rng.choice(("", "", rng.choice(CONSONANTS)))
        for _ in range(rng.randint(1, 4))
    )


def _code(rng: Random) -> str:
    signs = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    code = "".join(rng.choice(signs) for _ in range(rng.randint(2, 8)))
    return code[:3] + "-" + code[3:] if len(code) > 4 and rng.random() < 0.4 else code


def worded(rng: Random, form: str) -> str:
    """The form as people type it: sometimes with a please or a greeting, in small letters."""
    style = rng.random()
    if form[0].isupper():
        if style < 0.05 and not form.startswith("Please"):
            return rng.choice(("please ", "Please ")) + form[0].lower() + form[1:]
        if style < 0.12:
            return form[0].lower() + form[1:]
    if style > 0.97:
        return rng.choice(("Hi! ", "Hello! ", "Now ", "OK. ")) + form
    return form[:-1] if form.endswith(("}.", "}?")) and style > 0.9 else form


def _copy_word(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        word = rng.choice(words())
    elif kind < 0.7:
        word = made_up_word(rng)
    elif kind < 0.82:
        word = rng.choice(rng.choice(sentences()).split())
    elif kind < 0.93:
        word = str(rng.randrange(10 ** rng.randint(1, 5)))
    else:
        word = _code(rng)
    style = rng.random()
    if style < 0.12:
        return word.capitalize()
    return word.upper() if style < 0.16 else word


def copy_text(rng: Random) -> str:
    """A text to copy: words, made-up words, numbers and codes, or a changed English sentence."""
    if rng.random() < 0.15:
        items = rng.choice(sentences()).split()
        items[rng.randrange(len(items) - 1)] = rng.choice(words())
        return " ".join(items)
    only_words = rng.random() < 0.3
    num_items = rng.choice((1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 8, 10, 12, 16, 24))
    items = [rng.choice(words()) if only_words else _copy_word(rng) for _ in range(num_items)]
    text = rng.choice((*[" "] * 8, ", ", ", ", "\n", "-" if len(items) < 4 else " ")).join(items)
    if rng.random() < 0.2:
        text = text[0].upper() + text[1:] + rng.choice(".!?")
    return text


def copy_exchange(rng: Random, forms: Sequence[str] = COPY_FORMS) -> tuple[str, Exchange]:
    """A copy question, with its key."""
    text = copy_text(rng)
    return copy_key(text), Exchange(worded(rng, rng.choice(forms)).replace("{x}", text), text)


def _separated(rng: Random, items: list[str], ordered: list[str]) -> tuple[str, str]:
    """A list and its answer in the same way of writing."""
    style = rng.random()
    if style < 0.45:
        return " ".join(items), " ".join(ordered)
    if style < 0.85:
        return ", ".join(items), ", ".join(ordered)
    if style < 0.9:
        return ",".join(items), ", ".join(ordered)
    if style < 0.95:
        return f"[{', '.join(items)}]", f"[{', '.join(ordered)}]"
    return f"{', '.join(items[:-1])} and {items[-1]}", ", ".join(ordered)


def sort_exchange(rng: Random, forms: Sequence[str] = ()) -> tuple[str, Exchange]:
    """A question to sort numbers, with its key."""
    limit = rng.choice((10, 20, 50, 100, 100, 100, 100, 1000))
    count = min(rng.choice((2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 8, 9, 10)), limit)
    repeated = rng.random() < 0.15
    numbers = (
        [rng.randrange(limit) for _ in range(count)]
        if repeated
        else rng.sample(range(limit), count)
    )
    descending = not forms and rng.random() < 0.12
    form = worded(
        rng, rng.choice(forms or (REVERSE_SORT_FORMS if descending else NUMBER_SORT_FORMS))
    )
    items = [str(number) for number in numbers]
    ordered = [str(number) for number in sorted(numbers, reverse=descending)]
    listed, answer = _separated(rng, items, ordered)
    end = "." if form.endswith("{x}") and rng.random() < 0.08 else ""
    return sort_key(items), Exchange(form.replace("{x}", listed) + end, answer)


def word_sort_exchange(rng: Random, forms: Sequence[str] = WORD_SORT_FORMS) -> tuple[str, Exchange]:
    """A question to sort words by the alphabet, with its key."""
    items = rng.sample(words(), rng.choice((2, 3, 3, 4, 4, 5, 5, 6, 7)))
    listed, answer = _separated(rng, items, sorted(items))
    question_text = worded(rng, rng.choice(forms)).replace("{x}", listed)
    return sort_key(items), Exchange(question_text, answer)


def two_digit_sum(rng: Random, forms: Sequence[str] = SUM_FORMS) -> tuple[str, Exchange]:
    """A sum of two two-digit numbers, with its key."""
    first, second = rng.randint(10, 99), rng.randint(10, 99)
    text = worded(rng, rng.choice(forms)).format(a=first, b=second)
    return sum_key(first, second), Exchange(text, str(first + second))


def sum_exchange(rng: Random) -> tuple[str, Exchange]:
    """A sum with its key: mostly two digits, some of one or three, so that carrying is learned."""
    size = rng.random()
    if size < 0.6:
        return two_digit_sum(rng)
    limits = (0, 99) if size < 0.75 else (0, 999)
    first, second = rng.randint(*limits), rng.randint(*limits)
    text = worded(rng, rng.choice(SUM_FORMS)).format(a=first, b=second)
    return sum_key(first, second), Exchange(text, str(first + second))


Generator = Callable[[Random], tuple[str, Exchange]]


def draw(generator: Generator, rng: Random, *, held_out: bool) -> Exchange:
    """The next exchange on the wanted side of the split."""
    while True:
        key, exchange = generator(rng)
        if is_held_out(key) == held_out:
            return exchange


EVALUATED: dict[str, Generator] = {
    "copy": copy_exchange,
    "sort": sort_exchange,
    "sort_words": word_sort_exchange,
    "sum": two_digit_sum,
    "copy_unseen_wording": lambda rng: copy_exchange(rng, UNSEEN_FORMS["copy"]),
    "sort_unseen_wording": lambda rng: sort_exchange(rng, UNSEEN_FORMS["sort"]),
    "sum_unseen_wording": lambda rng: two_digit_sum(rng, UNSEEN_FORMS["sum"]),
}


def held_out_prompts(task: str, num: int, seed: int = 7) -> list[tuple[list[Message], str]]:
    """`num` conversations of a task that training never saw, each with its expected answer."""
    rng = Random(f"{task} {seed}")  # noqa: S311 - reproducible, not secret
    exchanges = [draw(EVALUATED[task], rng, held_out=True) for _ in range(num)]
    return [(question(exchange.question), exchange.answer) for exchange in exchanges]
