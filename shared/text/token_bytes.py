"""What each token adds to the text, in bytes: a tokenizer's decoder, taken apart per token.

A decoder of the `tokenizers` library works on a whole list. The ones that Llama and Qwen
checkpoints use act on each token alone, apart from the very start of the text, so the text of
any token list is the concatenation of these bytes. Whoever streams needs only that. Any other
decoder is left to the library.

Where it differs from the library on purpose: with byte fallback, the library turns a whole run
of byte tokens into U+FFFD when any part of the run is not UTF-8; here only the broken bytes
become U+FFFD, because the valid ones were already sent.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
Step = Callable[[str], str]


class NotPerTokenError(Exception):
    """The decoder looks at more than one token at a time, or there is none."""


def per_token(tokenizer: Tokenizer) -> "TokenBytes | None":
    """What each token stands for; None where that depends on the others."""
    try:
        return TokenBytes(tokenizer)
    except NotPerTokenError:
        return None


class TokenBytes:
    """Token id -> the bytes it stands for; computed on first use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """NotPerTokenError if its decoder cannot be taken apart."""
        self._name_of = tokenizer.id_to_token
        self._steps: list[Step] = []
        self._first_steps: list[Step] = []
        self._byte_fallback = False
        self._byte_level: dict[str, int] = {}
        self.num_leading_spaces = 0
        """spaces taken off the start of the text"""
        self._known: dict[int, bytes] = {}
        for part in _parts(tokenizer):
            self._add(part)

    def of(self, token_id: int) -> bytes:
        """Bytes of a token that is not the first of the text; empty for an unknown id."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._bytes(token_id, self._steps)
        return known

    def of_first(self, token_id: int) -> bytes:
        """Bytes of the token that the text starts with."""
        return self._bytes(token_id, self._first_steps)

    def _bytes(self, token_id: int, steps: list[Step]) -> bytes:
        name: str | None = self._name_of(token_id)
        if name is None:
            return b""
        if self._byte_level:
            codes = [self._byte_level.get(char) for char in name]
            if None in codes:
                return name.encode()
            return bytes(code for code in codes if code is not None)
        if self._byte_fallback and _BYTE_TOKEN.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        for step in steps:
            name = step(name)
        return name.encode()

    def _add(self, part: dict[str, Any]) -> None:
        """One part of the decoder; NotPerTokenError for one whose effect is not per token."""
        kind = part["type"]
        if kind == "ByteLevel":
            self._byte_level = byte_alphabet()
        elif kind == "ByteFallback":
            self._byte_fallback = True
        elif kind == "Replace" and "String" in part["pattern"]:
            self._add_replace(part["pattern"]["String"], part["content"])
        elif kind == "Metaspace":
            self._add_metaspace(part)
        elif kind == "Strip" and part["content"] == " " and part["stop"] == 0:
            self.num_leading_spaces = part["start"]
        elif kind != "Fuse":
            raise NotPerTokenError(f"decoder {kind}")

    def _add_replace(self, old: str, new: str) -> None:
        self._steps.append(lambda name: name.replace(old, new))
        self._first_steps.append(lambda name: name.replace(old, new))

    def _add_metaspace(self, part: dict[str, Any]) -> None:
        mark = part["replacement"]
        at_start = " " if part.get("prepend_scheme", "always") == "never" else ""
        self._steps.append(lambda name: name.replace(mark, " "))
        self._first_steps.append(lambda name: name.replace(mark, at_start))


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): printable Latin-1 bytes stand for
    themselves, the others for the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(code): code for code in printable}
    others = (code for code in range(256) if code not in set(printable))
    return alphabet | {chr(0x100 + index): code for index, code in enumerate(others)}


def _parts(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        raise NotPerTokenError("no decoder")
    return flat(json.loads(tokenizer.decoder.__getstate__()), "decoders")


def flat(part: dict[str, Any], nested: str) -> list[dict[str, Any]]:
    """A component of tokenizer.json as the list of its simple parts."""
    if part["type"] == "Sequence":
        return [item for inner in part[nested] for item in flat(inner, nested)]
    return [part]
