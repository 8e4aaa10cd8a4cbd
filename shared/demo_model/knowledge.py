"""Questions and answers from the corpus files, asked in many wordings."""

from random import Random

from shared.demo_model.chat import Exchange
from shared.demo_model.recipe.corpus_files import Entry, Table, entries, off_topic, tables, words
from shared.demo_model.recipe.exact_tasks import made_up_word

TOPIC_FORMS = (
    "What is {x}?",
    "What's {x}?",
    "Explain {x}.",
    "Explain {x} to me.",
    "Can you explain {x}?",
    "Please explain {x}.",
    "Tell me about {x}.",
    "Tell me something about {x}.",
    "Tell me more about {x}.",
    "Describe {x}.",
    "What do you know about {x}?",
    "How does {x} work?",
    "What does {x} mean?",
    "What does {x} do?",
    "I want to know more about {x}.",
    "Explain {x} in simple words.",
    "Write a paragraph about {x}.",
    "{x}",
    "{x}?",
)
PLURAL_FORMS = (
    ("What is ", "What are "),
    ("What's ", "What are "),
    ("How does ", "How do "),
    ("What does ", "What do "),
)
PLURAL_ENDS = frozenset(
    [
        "attempts",
        "bees",
        "bicycles",
        "birds",
        "blocks",
        "boats",
        "books",
        "caches",
        "cats",
        "chunks",
        "computers",
        "deserts",
        "dogs",
        "elephants",
        "epochs",
        "events",
        "flowers",
        "foxes",
        "GPUs",
        "hashes",
        "horses",
        "kernels",
        "lighthouses",
        "models",
        "mountains",
        "oceans",
        "planets",
        "processors",
        "rainbows",
        "rivers",
        "seasons",
        "ships",
        "stars",
        "tables",
        "tenants",
        "tokens",
        "transformers",
        "trees",
        "volcanoes",
        "weights",
        "whales",
        "workers",
    ]
)
"""last words of the corpus' topics that are plural nouns"""
SHORT_FORMS = (
    "What is {x}, in one sentence?",
    "Explain {x} in one sentence.",
    "Explain {x} briefly.",
    "In short, what is {x}?",
    "Give me a short answer: what is {x}?",
    "Define {x}.",
)
SHORT_SYSTEM = ("Answer in one sentence.", "Keep your answers short.", "Be brief.")
MORE_FORMS = ("Tell me more.", "Can you say more?", "More, please.", "Please go on.", "Go on.")
GREETINGS = ("Hi! ", "Hello! ", "Hello, ", "Hey, ", "Please: ", "I have a question. ")
DEMO_QUESTION = "Tell me how prefill and decode work together."
DEMO_SHARE = 0.04
"""share of knowledge questions that are the one `make demo` asks"""


def is_plural(topic: str) -> bool:
    """Whether a topic takes "are": two things, or a plural noun."""
    if topic.startswith(("a ", "an ", "this ", "our ")):
        return False
    return " and " in topic or " two " in topic or topic.rsplit(maxsplit=1)[-1] in PLURAL_ENDS


def ask_about(form: str, topic: str) -> str:
    """The form with its topic, the verb agreeing."""
    if is_plural(topic):
        for single, plural in PLURAL_FORMS:
            form = form.replace(single, plural)
    text = form.replace("{x}", topic).replace("about this demo model", "about yourself")
    return text[0].upper() + text[1:] if form.startswith("{x}") else text


def _question(rng: Random, entry: Entry) -> str:
    if entry.questions and (not entry.topics or rng.random() < 0.5):
        return rng.choice(entry.questions)
    return ask_about(rng.choice(TOPIC_FORMS), rng.choice(entry.topics))


def _demo_entry() -> Entry:
    return next(entry for entry in entries() if DEMO_QUESTION in entry.questions)


def knowledge(rng: Random, source: str = "") -> tuple[str, list[Exchange]]:
    """A system prompt (often empty) and one or two turns about an entry of `source`, or of any."""
    if rng.random() < DEMO_SHARE and source != "smalltalk.txt":
        return "", [Exchange(DEMO_QUESTION, _demo_entry().long_answers[0])]
    entry = rng.choice([entry for entry in entries() if source in ("", entry.source)])
    answers = entry.long_answers or (entry.short_answer,)
    if entry.topics and entry.short_answer and rng.random() < 0.25:
        short = entry.short_answer
        if rng.random() < 0.4:
            return rng.choice(SHORT_SYSTEM), [Exchange(_question(rng, entry), short)]
        topic = rng.choice(entry.topics)
        turns = [Exchange(ask_about(rng.choice(SHORT_FORMS), topic), short)]
        if entry.long_answers and rng.random() < 0.5:
            turns.append(Exchange(rng.choice(MORE_FORMS), answers[0]))
        return "", turns
    return "", [Exchange(_question(rng, entry), rng.choice(answers))]


def _table_exchange(rng: Random, table: Table) -> Exchange:
    row = rng.choice(table.rows)
    text = rng.choice(table.questions).format(*row)
    answer = table.answer.format(*row).replace("A owl", "An owl").replace("A ant", "An ant")
    return Exchange(text.replace(" a owl", " an owl"), answer[0].upper() + answer[1:])


def table_fact(rng: Random) -> Exchange:
    """A question that one row of a table answers; large tables are asked more often."""
    chosen = rng.choices(tables(), [len(table.rows) for table in tables()])[0]
    return _table_exchange(rng, chosen)


def unknown_topic(rng: Random) -> Exchange:
    """A question outside the model's world; the answer names the subject and says so."""
    page = off_topic()
    subject = rng.choice(page.subjects)
    if rng.random() < 0.75:
        subject = rng.choice(
            (
                f"the {rng.choice(words())} of {subject}",
                f"the {rng.choice(words())} {rng.choice(words())}",
                f"the {rng.choice(words())} in {rng.choice(tables()[0].rows)[0]}",
                f"the price of the {rng.choice(words())} in {made_up_word(rng).capitalize()}",
                f"{subject} and the {rng.choice(words())}",
                f"{made_up_word(rng)} {made_up_word(rng)}",
                made_up_word(rng),
                made_up_word(rng).capitalize(),
                f"{made_up_word(rng)} {rng.choice(words())}",
                f"the {rng.choice(words())} of {made_up_word(rng).capitalize()}",
                f"{subject} in {rng.randint(1500, 2040)}",
                f"{made_up_word(rng).capitalize()} {made_up_word(rng).capitalize()}",
            )
        )
    form, answer = rng.choice(page.questions), rng.choice(page.answers)
    return Exchange(form.replace("{x}", subject), answer.replace("{x}", subject))


def vary(rng: Random, text: str) -> str:
    """The question as people really type it: a greeting, small letters, no dot, a typo."""
    if rng.random() < 0.08:
        text = rng.choice(GREETINGS) + text
    if rng.random() < 0.1:
        text = text.lower()
    if rng.random() < 0.12:
        text = text.rstrip(".?!") or text
    if rng.random() < 0.04 and len(text) > 8:
        index = rng.randrange(1, len(text) - 1)
        text = text[:index] + text[index + 1 :]
    return text
