"""Tokens to text as they come: the concatenated pieces always equal the whole text.

A character whose bytes are spread over several tokens appears with its last byte. Bytes that
can no longer become a character turn into U+FFFD, and so does, once, a character that the end
of the output cuts. Each token costs the same however long the text is.
"""

from codecs import utf_8_decode
from collections.abc import Iterable

from shared.text.token_bytes import TokenBytes


class Detokenizer:
    """The text of one token list. Special tokens leave it."""

    def __init__(self, token_bytes: TokenBytes, special_ids: frozenset[int]) -> None:
        self._bytes_of = token_bytes.of
        self._token_bytes = token_bytes
        self._special_ids = special_ids
        self._pending = b""
        """bytes of a character that is not complete yet"""
        self._at_start = True
        self._num_spaces_to_strip = token_bytes.num_leading_spaces

    def push(self, token_ids: Iterable[int]) -> str:
        """Step 8: the text these tokens complete; possibly empty."""
        fresh = self._pending
        for token_id in token_ids:
            if token_id in self._special_ids:
                continue
            if self._at_start:
                fresh += self._first(token_id)
            else:
                fresh += self._bytes_of(token_id)
        if fresh.isascii():
            self._pending = b""
            return fresh.decode("ascii")
        text, num_used = utf_8_decode(fresh, "replace", False)
        self._pending = fresh[num_used:]
        return text

    def end(self) -> str:
        """What the end of the output leaves: nothing, or one U+FFFD."""
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text

    def _first(self, token_id: int) -> bytes:
        """Bytes of a token while the start of the text is still open."""
        made = self._token_bytes.of_first(token_id)
        while self._num_spaces_to_strip and made.startswith(b" "):
            made = made[1:]
            self._num_spaces_to_strip -= 1
        self._at_start = bool(not made and self._num_spaces_to_strip)
        return made
