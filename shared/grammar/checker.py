"""The process that tries grammars out, so that none can hurt whoever asks.

The first message says which vocabulary to load and is answered by a Verdict too; then every Trial
gets one. What the library cannot bound itself, time and memory, is bounded from outside: the parent
kills this process over a grammar that takes too long, and an allocation beyond the limit ends it.
"""

import resource
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shared.child.asker import Asker
from shared.codec import Codec
from shared.errors import GrammarError, MissingError
from shared.grammar.matcher import GrammarVocabulary
from shared.grammar.places import raise_at_place
from shared.grammar.schemas import check_depth, check_schema, schemas_in
from shared.grammar.source import Schema, json_schema

MEMORY_BYTES = 512 * 2**20
"""address space a grammar may take beyond the vocabulary"""


@dataclass(frozen=True)
class CheckSetup:
    """First message: the model's vocabulary."""

    directory: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """A grammar to compile."""

    grammar: str


@dataclass(frozen=True)
class Verdict:
    """What is wrong; empty if nothing is."""

    problem: str


CHECK_CODEC = Codec((CheckSetup, Trial, Verdict))


def check_grammar(vocabulary: GrammarVocabulary, grammar: str) -> None:
    """GrammarError unless an engine with this vocabulary can follow it to an end; it names the
    place in a schema if it can."""
    check_depth(grammar)
    for schema in schemas_in(grammar):
        check_schema(schema)
    try:
        vocabulary.compile(grammar)
    except GrammarError as error:
        for schema in schemas_in(grammar):
            raise_at_place(schema, partial(_compile_schema, vocabulary))
        raise error


def serve(asker: Asker) -> None:
    """Answer trials until the parent has no more."""
    setup = asker.next()
    if not isinstance(setup, CheckSetup):
        return
    try:
        vocabulary = GrammarVocabulary.load(
            Path(setup.directory), setup.vocab_size, setup.eos_token_ids
        )
    except (GrammarError, MissingError) as error:
        asker.answer(Verdict(str(error)))
        return
    _limit_memory()
    asker.answer(Verdict(""))
    while isinstance(trial := asker.next(), Trial):
        asker.answer(Verdict(_problem(vocabulary, trial.grammar)))


def _problem(vocabulary: GrammarVocabulary, grammar: str) -> str:
    try:
        check_grammar(vocabulary, grammar)
    except GrammarError as error:
        return str(error)
    except (MemoryError, RecursionError):
        return "it needs too much memory"
    return ""


def _compile_schema(vocabulary: GrammarVocabulary, schema: Schema) -> None:
    vocabulary.compile(json_schema(schema))


def _limit_memory() -> None:
    """From what is in use now; and no core file, it would hold a client's schema."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    serve(Asker.parent(CHECK_CODEC))
