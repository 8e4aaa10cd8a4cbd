"""Follows a grammar token by token: what may come next, and whether it may end here.

llguidance does the work; it is imported when the first vocabulary is loaded, so that a process
without it runs until somebody asks for a grammar.
"""

import importlib
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import GrammarError, MissingError, OffGrammarError
from shared.model.files import TOKENIZER

if TYPE_CHECKING:
    import llguidance

LIBRARY = "llguidance"
MAX_LEXER_STATES = 20_000
"""1 to 2 kB each"""
NO_OUTPUT = "no output matches the grammar"
DEAD_END = "NoExtension"
"""how the library's error begins then"""
MAX_PROBLEM_CHARS = 300
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")


def grammars_available() -> bool:
    """Whether this machine has the library."""
    return importlib.util.find_spec(LIBRARY) is not None


class GrammarVocabulary:
    """The tokens of one model as a grammar sees them: bytes, special tokens, endings."""

    def __init__(self, tokenizer: "llguidance.LLTokenizer", never_ids: Sequence[int] = ()) -> None:
        """`never_ids`: endings the library wants to see, in a model that has none."""
        self._tokenizer = tokenizer
        self._never_ids = tuple(never_ids)

    @classmethod
    def load(
        cls, directory: Path, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> "GrammarVocabulary":
        """From a checkpoint's tokenizer.json. Takes about 10 us a token and lets no other thread
        run meanwhile. MissingError without the library, GrammarError if it cannot read the file.
        """
        try:
            library = importlib.import_module(LIBRARY)
        except ImportError:
            raise MissingError(f"grammars need `pip install {LIBRARY}`") from None
        path = directory / TOKENIZER
        try:
            tokenizer = library.LLTokenizer(
                path.read_text(encoding="utf-8"),
                n_vocab=vocab_size,
                eos_token=list(eos_token_ids) or None,
            )
        except (OSError, ValueError) as error:
            raise GrammarError(f"{path.name} cannot be used for grammars: {error}") from None
        return cls(tokenizer, () if eos_token_ids else tokenizer.eos_tokens)

    def compile(self, grammar: str) -> "Matcher":
        """A matcher at the start of an output. Other threads run meanwhile.

        GrammarError if the grammar is wrong, needs too much, or allows no output.
        """
        library = importlib.import_module(LIBRARY)
        limits = library.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        started = library.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        matcher = Matcher(started, self._never_ids)
        matcher.allowed()
        matcher.check()
        return matcher

    def encode(self, text: str) -> list[int]:
        """Tokens that make up this text, not always those the model would choose."""
        return list(self._tokenizer.tokenize_str(text))


class Matcher:
    """One output's place in its grammar. A failure stays: each `accept` after it raises."""

    def __init__(self, matcher: "llguidance.LLMatcher", never_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._never_ids = never_ids

    def allowed(self) -> bytes:
        """One bit per token, the lowest of the first byte is token 0: what may come next. Endings
        are among it where the output is complete. Other threads run meanwhile."""
        bits = self._matcher.compute_bitmask()
        if not self._never_ids:
            return bits
        fewer = bytearray(bits)
        for token_id in self._never_ids:
            fewer[token_id // 8] &= ~(1 << token_id % 8)
        return bytes(fewer)

    def accept(self, token_id: int) -> None:
        """The output has one more token. OffGrammarError if the grammar does not allow it or grew
        too large over all its outputs, GrammarError if no token could have followed."""
        if self._matcher.is_error() and self._matcher.get_error().startswith(DEAD_END):
            self.check()
        self._matcher.consume_token(token_id)
        if self._matcher.is_error() or (self.is_stopped and not self.is_complete):
            reason = self._matcher.stop_reason()
            raise OffGrammarError(f"the output cannot go on by its grammar ({reason})")

    def replay(self, token_ids: Sequence[int]) -> None:
        """`accept` for several."""
        for token_id in token_ids:
            self.accept(token_id)

    def num_accepted(self, token_ids: Sequence[int]) -> int:
        """How many of these, from the first on, the grammar allows one after another; nothing
        changes."""
        return int(self._matcher.validate_tokens(list(token_ids)))

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back."""
        if not self._matcher.rollback(num_tokens):
            self.check()

    def copy(self) -> "Matcher":
        """Another output at the same place; what was learnt of the grammar is shared."""
        return Matcher(self._matcher.deep_copy(), self._never_ids)

    @property
    def is_complete(self) -> bool:
        """The output so far matches the whole grammar."""
        return bool(self._matcher.is_accepting())

    @property
    def is_stopped(self) -> bool:
        """Nothing but an ending can follow, or an ending came."""
        return bool(self._matcher.is_stopped())

    def check(self) -> None:
        """GrammarError if this output can never be completed."""
        if self._matcher.is_error():
            raise GrammarError(_problem(self._matcher.get_error()))
        if self._matcher.is_stopped() and not self._matcher.is_accepting():
            raise GrammarError(NO_OUTPUT)


def _problem(error: str) -> str:
    """An error of the library without places in a text that its author never saw."""
    if error.startswith(DEAD_END) or "Regex is empty" in error:
        return NO_OUTPUT
    if "coerce_one_of" in error:
        return "an oneOf whose branches may overlap cannot be enforced; use anyOf"
    told = " ".join(error.partition("\n   1 |")[0].split())
    told = _PLACE.sub("", told)
    if found := _UNKNOWN_KEYS.fullmatch(told):
        which = "which cannot be enforced; leave it out"
        if "," in found[1]:
            which = "which cannot be enforced; leave them out"
        told = f"the schema uses {found[1]}, {which}"
    told = told[:MAX_PROBLEM_CHARS]
    return "".join(char if char.isprintable() else "?" for char in told)
