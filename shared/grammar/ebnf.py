"""GBNF, the EBNF of llama.cpp and XGrammar, as Lark text."""

import importlib
import re

from shared.errors import GrammarError, MissingError
from shared.grammar.source import MAX_GRAMMAR_BYTES

CONVERTER = "llguidance.gbnf_to_lark"
OPTIONS = "%llguidance"
"""begins a line that sets options of the library: ours to set"""

MAX_RULES = 256
"""the converter's time grows with their square"""

_IS_LARK = re.compile(r"^\s*start\s*:(?!:=)", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_FIRST_PRINTABLE = 0xA1
"""above ASCII: a character that stands for itself everywhere in a grammar"""


def to_lark(text: str) -> str:
    """Lark as it is, GBNF converted. GrammarError if it is neither, MissingError without the
    library. What the text means is left to its compiler."""
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"more than {MAX_GRAMMAR_BYTES} bytes")
    if OPTIONS in text:
        raise GrammarError(f"{OPTIONS} is not taken; leave it out")
    if text.count("::=") > MAX_RULES:
        raise GrammarError(f"more than {MAX_RULES} rules")
    if _IS_LARK.search(text):
        return text
    try:
        converter = importlib.import_module(CONVERTER)
    except ImportError:
        raise MissingError("grammars need `pip install llguidance`") from None
    try:
        lark: str = converter.gbnf_to_lark(_ESCAPE.sub(_unescaped, text))
    except RecursionError:
        raise GrammarError("more levels of nesting than can be read") from None
    except Exception as error:  # noqa: BLE001  (the converter raises the bare class too)
        place = getattr(error, "pos", None)
        line = f" (line {text.count(chr(10), 0, place.pos) + 1})" if place else ""
        raise GrammarError(
            f"neither Lark with a rule `start:` nor GBNF with a rule `root ::=`{line}"
        ) from None
    return "\n".join(line for line in lark.splitlines() if not line.startswith(OPTIONS))


def _unescaped(found: re.Match[str]) -> str:
    """`\\u4e2d` as the character itself, which the converter would otherwise write wrongly."""
    if found[1] is None:
        return found[0]
    code = int(found[1], 16)
    if code >= _FIRST_PRINTABLE and not 0xD800 <= code < 0xE000:
        return chr(code)
    return f"\\x{code:02x}"
