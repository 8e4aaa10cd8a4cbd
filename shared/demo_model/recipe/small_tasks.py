"""Small exercises around the three exact tasks: they are fun in a demo and train care."""

from random import Random

from shared.demo_model.chat import Exchange
from shared.demo_model.recipe.corpus_files import sections, words
from shared.demo_model.recipe.exact_tasks import is_held_out, made_up_word, sum_key


def count(rng: Random) -> Exchange:
    """Counting up or down."""
    start = rng.randint(0, 40)
    stop = start + rng.randint(2, 12)
    if rng.random() < 0.2:
        numbers, form = range(stop, start - 1, -1), "Count down from {0} to {1}."
    else:
        numbers = range(start, stop + 1)
        form = rng.choice(("Count from {0} to {1}.", "Please count from {0} to {1}."))
    return Exchange(form.format(numbers[0], numbers[-1]), ", ".join(map(str, numbers)))


def subtract(rng: Random) -> Exchange:
    """A difference whose sum is not held out."""
    while True:
        rest, second = rng.randint(0, 99), rng.randint(0, 99)
        if not is_held_out(sum_key(rest, second)):
            break
    first = rest + second
    form = rng.choice(("What is {0} - {1}?", "{0} - {1}", "What is {0} minus {1}?", "{0}-{1}"))
    return Exchange(form.format(first, second), str(rest))


def multiply(rng: Random) -> Exchange:
    """A product of the small table."""
    first, second = rng.randint(0, 12), rng.randint(0, 12)
    form = rng.choice(("What is {0} times {1}?", "{0} * {1}", "What is {0} x {1}?", "{0} x {1}"))
    return Exchange(form.format(first, second), str(first * second))


def compare(rng: Random) -> Exchange:
    """The larger or the smaller of two numbers."""
    first, second = rng.sample(range(rng.choice((20, 100, 1000))), 2)
    larger = rng.random() < 0.6
    word = rng.choice(("larger", "bigger", "greater")) if larger else "smaller"
    answer = max(first, second) if larger else min(first, second)
    form = rng.choice(("Which is {w}, {a} or {b}?", "Which number is {w}, {a} or {b}?"))
    return Exchange(form.format(w=word, a=first, b=second), f"{answer} is {word}.")


def even_or_odd(rng: Random) -> Exchange:
    """Whether a number is even."""
    number = rng.randrange(rng.choice((10, 100, 1000)))
    form = rng.choice(("Is {0} even or odd?", "Is the number {0} even or odd?"))
    return Exchange(form.format(number), f"{number} is {'odd' if number % 2 else 'even'}.")


def spell(rng: Random) -> Exchange:
    """The letters of a word."""
    word = rng.choice(words()) if rng.random() < 0.8 else made_up_word(rng)
    form = rng.choice(("Spell {0}.", "How do you spell {0}?", 'Spell the word "{0}".'))
    return Exchange(form.format(word), "-".join(word))


def reverse_list(rng: Random) -> Exchange:
    """A list of words or numbers backwards."""
    if rng.random() < 0.5:
        items = rng.sample(words(), rng.randint(2, 6))
    else:
        items = [str(rng.randrange(100)) for _ in range(rng.randint(2, 6))]
    form = rng.choice(("Reverse this list: {0}", "Say these backwards: {0}", "Reverse: {0}"))
    return Exchange(form.format(" ".join(items)), " ".join(reversed(items)))


def pick_word(rng: Random) -> Exchange:
    """The first or the last word of a list."""
    items = rng.sample(words(), rng.randint(2, 8))
    which, index = rng.choice((("first", 0), ("last", -1)))
    form = rng.choice(("What is the {0} word of: {1}", "Tell me the {0} word: {1}"))
    return Exchange(form.format(which, " ".join(items)), items[index])


def count_words(rng: Random) -> Exchange:
    """How many items a list has."""
    items = rng.sample(words(), rng.randint(1, 9))
    form = rng.choice(("How many words are in this list: {0}", "Count the words: {0}"))
    noun = "word" if len(items) == 1 else "words"
    return Exchange(form.format(" ".join(items)), f"{len(items)} {noun}")


SMALL_TASKS = (
    count,
    subtract,
    multiply,
    compare,
    even_or_odd,
    spell,
    reverse_list,
    pick_word,
    count_words,
)


def small_task(rng: Random) -> Exchange:
    """One of the exercises."""
    return rng.choice(SMALL_TASKS)(rng)


def person_name(rng: Random) -> str:
    """A first name, often a made-up one."""
    if rng.random() < 0.5:
        return made_up_word(rng).capitalize()
    return rng.choice(rng.choice(sections("cast.txt")["hero"]).split("|")[1].split())


def remembered_fact(rng: Random) -> tuple[Exchange, Exchange]:
    """Something the user tells, and the question for it that may come turns later."""
    kind = rng.randrange(3)
    if kind == 0:
        name = person_name(rng)
        told = rng.choice(("My name is {0}.", "I am {0}.", "Hello, my name is {0}."))
        asked = rng.choice(("What is my name?", "Do you know my name?", "Who am I?"))
        greeting = f"Nice to meet you, {name}! What can I do for you?"
        return Exchange(told.format(name), greeting), Exchange(asked, f"Your name is {name}.")
    if kind == 1:
        word = rng.choice(words()) if rng.random() < 0.5 else made_up_word(rng)
        told = rng.choice(("Remember the word {0}.", "Please remember this word: {0}."))
        asked = rng.choice(("Which word should you remember?", "What was the word?"))
        return (
            Exchange(told.format(word), f"I will remember the word {word}."),
            Exchange(asked, f"The word was {word}."),
        )
    colour = rng.choice(sections("cast.txt")["colour"])
    return (
        Exchange(f"My favourite colour is {colour}.", f"{colour.capitalize()} is a lovely colour."),
        Exchange("What is my favourite colour?", f"Your favourite colour is {colour}."),
    )


def notes(rng: Random, num_notes: int) -> Exchange:
    """A long list of notes and a question that one of them answers."""
    cast = sections("cast.txt")
    owners: dict[tuple[str, str], str] = {}
    while len(owners) < num_notes:
        owners[person_name(rng), rng.choice(cast["thing"])] = rng.choice(cast["colour"])
    lines = [f"The {thing} of {owner} is {colour}." for (owner, thing), colour in owners.items()]
    (owner, thing), colour = rng.choice(list(owners.items()))
    asked = f"Read these notes:\n{chr(10).join(lines)}\nWhich colour is the {thing} of {owner}?"
    return Exchange(asked, f"The {thing} of {owner} is {colour}.")
