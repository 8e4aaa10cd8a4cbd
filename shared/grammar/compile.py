"""Compiling a grammar so that its author learns where it is wrong."""

from functools import partial

from shared.errors import GrammarError
from shared.grammar.matcher import GrammarVocabulary, Matcher
from shared.grammar.places import raise_at_place
from shared.grammar.schemas import schemas_in
from shared.grammar.source import Schema, json_schema


def compile_grammar(vocabulary: GrammarVocabulary, grammar: str) -> Matcher:
    """A matcher at the start of an output. GrammarError names the place in a schema if it can."""
    try:
        return vocabulary.compile(grammar)
    except GrammarError as error:
        for schema in schemas_in(grammar):
            raise_at_place(schema, partial(_compile_schema, vocabulary))
        raise error


def _compile_schema(vocabulary: GrammarVocabulary, schema: Schema) -> None:
    vocabulary.compile(json_schema(schema))
