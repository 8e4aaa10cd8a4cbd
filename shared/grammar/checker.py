"""The process that tries grammars out, so that none can hurt whoever asks.

Frames on stdin and stdout: a 4-byte big-endian length and a message of `CHECK_CODEC`. The first
frame says which vocabulary to load and is answered by a Verdict too; then every Trial gets one.
What the library cannot bound itself, time and memory, is bounded from outside: the parent kills
this process over a grammar that takes too long, and an allocation beyond the limit ends it.
"""

import resource
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from shared.codec import Codec
from shared.errors import GrammarError, MissingError
from shared.grammar.matcher import GrammarVocabulary
from shared.grammar.places import raise_at_place
from shared.grammar.schemas import check_depth, check_schema, schemas_in
from shared.grammar.source import Schema, json_schema
from shared.process import die_with_parent

LENGTH_BYTES = 4
MEMORY_BYTES = 512 * 2**20
"""address space a grammar may take beyond the vocabulary"""


@dataclass(frozen=True)
class CheckSetup:
    """First frame: the model's vocabulary, and whose process this is."""

    directory: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    parent_pid: int


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
    """GrammarError unless an engine with this vocabulary can follow it to an end."""
    check_depth(grammar)
    schemas = list(schemas_in(grammar))
    for schema in schemas:
        check_schema(schema)
    try:
        vocabulary.compile(grammar)
    except GrammarError as error:
        for schema in schemas:
            raise_at_place(schema, partial(_compile_schema, vocabulary))
        raise error


def _compile_schema(vocabulary: GrammarVocabulary, schema: Schema) -> None:
    vocabulary.compile(json_schema(schema))


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer trials until the pipe closes."""
    setup = _next(incoming)
    if not isinstance(setup, CheckSetup):
        return
    die_with_parent(setup.parent_pid)
    try:
        vocabulary = GrammarVocabulary.load(
            Path(setup.directory), setup.vocab_size, setup.eos_token_ids
        )
    except (GrammarError, MissingError) as error:
        _send(outgoing, Verdict(str(error)))
        return
    _limit_memory()
    _send(outgoing, Verdict(""))
    while isinstance(trial := _next(incoming), Trial):
        _send(outgoing, Verdict(_problem(vocabulary, trial.grammar)))


def _problem(vocabulary: GrammarVocabulary, grammar: str) -> str:
    try:
        check_grammar(vocabulary, grammar)
    except GrammarError as error:
        return str(error)
    except (MemoryError, RecursionError):
        return "it needs too much memory"
    return ""


def _limit_memory() -> None:
    """From what is in use now; and no core file, it would hold a client's schema."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _next(incoming: BinaryIO) -> object:
    size = incoming.read(LENGTH_BYTES)
    if len(size) < LENGTH_BYTES:
        return None
    return CHECK_CODEC.decode(incoming.read(int.from_bytes(size, "big")))


def _send(outgoing: BinaryIO, verdict: Verdict) -> None:
    frame = CHECK_CODEC.encode(verdict)
    outgoing.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
    outgoing.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
