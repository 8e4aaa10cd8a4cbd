"""Tokens to text by the tokenizer's own incremental decoding: slower, and right for any decoder.

For tokenizers without a decoder, or with one that looks at more than a token at a time.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class LibraryDetokenizer:
    """The text of one token list. Special tokens leave it."""

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._restart()

    def push(self, token_ids: Iterable[int]) -> str:
        """Step 8: the text these tokens complete; possibly empty."""
        text = ""
        for token_id in token_ids:
            known = self._tokenizer.id_to_token(token_id) is not None
            if known and token_id not in self._special_ids:
                text += self._step(token_id)
        return text

    def end(self) -> str:
        """What the end of the output leaves, such as one U+FFFD for a character that is cut."""
        if not self._ids:
            return ""
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        shown = self._num_shown
        self._restart()
        return text[shown:]

    def _step(self, token_id: int) -> str:
        self._ids.append(token_id)
        try:
            text: str = self._stream.step(self._tokenizer, token_id) or ""
        except Exception:  # noqa: BLE001  (the library raises the bare class)
            # The token changes text that was shown. That cannot be taken back: go on behind it.
            self._restart()
            self._ids.append(token_id)
            text = self._stream.step(self._tokenizer, token_id) or ""
        self._num_shown += len(text)
        return text

    def _restart(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        """tokens since the start of the stream"""
        self._num_shown = 0
        """characters of theirs"""
