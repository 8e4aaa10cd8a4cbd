"""The checkpoint's tokenizer: text to ids, with control over what may become a special token."""

import json
import os
import re
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from shared.errors import ModelError
from shared.model.files import TOKENIZER
from shared.text.detokenizer import Detokenizer
from shared.text.library_detokenizer import LibraryDetokenizer
from shared.text.token_bytes import flat, per_token


class TextTokenizer:
    """One tokenizer.json. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        """guards the tokenizer's one mutable option"""
        added = tokenizer.get_added_tokens_decoder()
        special = {index: token for index, token in added.items() if token.special}
        self.added_tokens = {token.content: index for index, token in added.items()}
        """special or not"""
        self.special_ids = frozenset(special)
        self.special_tokens = {token.content: index for index, token in special.items()}
        self.special_pattern = _names_pattern(self.special_tokens)
        """matches the name of a special token; names of one character are left out, they
        cannot be told from text"""
        self.named_ids = frozenset(
            index for name, index in self.special_tokens.items() if len(name) > 1
        )
        self.token_bytes = per_token(tokenizer)
        self._longest_token_bytes = _longest_token_bytes(tokenizer, list(added.values()))
        self._bos_ids = frozenset(tokenizer.encode("").ids)

    @classmethod
    def load(cls, directory: Path) -> "TextTokenizer":
        """ModelError if the directory has no tokenizer.json that can be read."""
        path = directory / TOKENIZER
        if not path.is_file():
            raise ModelError(f"{path}: missing (Baton reads fast tokenizers only)")
        # Our texts come one by one; the library's thread pool would only compete for the cores.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        try:
            return cls(Tokenizer.from_file(str(path)))
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{path}: cannot be read: {error}") from error

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of text in which special tokens may be written; nothing is added."""
        with self._lock:
            return self._encode(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a whole raw prompt: what the tokenizer adds (BOS) is added, but not twice."""
        with self._lock:
            ids: list[int] = self._tokenizer.encode_batch_fast([text])[0].ids
        if len(ids) > 1 and ids[0] == ids[1] and ids[0] in self._bos_ids:
            return ids[1:]
        return ids

    def encode_as_plain_text(self, text: str) -> list[int]:
        """Ids of text in which a special token's name is just characters."""
        with self._lock:
            self._tokenizer.encode_special_tokens = True
            try:
                ids = self._encode(text)
                if self.special_ids.isdisjoint(ids):
                    return ids
                return [token for part in self._broken_up(text) for token in self._encode(part)]
            finally:
                self._tokenizer.encode_special_tokens = False

    def shortest_encoding(self, num_bytes: int) -> int:
        """No text of `num_bytes` has fewer tokens; 0 where this tokenizer gives no such bound."""
        return -(-num_bytes // self._longest_token_bytes) if self._longest_token_bytes else 0

    def detokenizer(self, visible_ids: Collection[int] = ()) -> Detokenizer | LibraryDetokenizer:
        """`visible_ids`: special tokens that stay in the text."""
        hidden = self.special_ids.difference(visible_ids) if visible_ids else self.special_ids
        if self.token_bytes is None:
            return LibraryDetokenizer(self._tokenizer, hidden)
        return Detokenizer(self.token_bytes, hidden)

    def token_name(self, token_id: int) -> str:
        """What the vocabulary calls it."""
        return self._tokenizer.id_to_token(token_id) or ""

    def token_text(self, token_id: int) -> str:
        """How a token is shown on its own, as in logprobs."""
        if token_id in self.special_ids:
            return str(self._tokenizer.id_to_token(token_id))
        return self._bytes_of(token_id).decode("utf-8", "replace")

    def token_utf8(self, token_id: int) -> bytes:
        """The bytes behind `token_text`."""
        if token_id in self.special_ids:
            return self.token_text(token_id).encode()
        return self._bytes_of(token_id)

    def _bytes_of(self, token_id: int) -> bytes:
        """Of a token that is not special."""
        if self.token_bytes is not None:
            return self.token_bytes.of(token_id)
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text.encode()

    def _encode(self, text: str) -> list[int]:
        # The batch call is the one that lets go of the interpreter lock while it works.
        batch = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = batch[0].ids
        return ids

    def _broken_up(self, text: str) -> list[str]:
        """`text` in parts none of which contains a special token's name."""
        parts: list[str] = []
        while found := self.special_pattern.search(text):
            parts.append(text[: found.start() + 1])
            text = text[found.start() + 1 :]
        return [*parts, text]


def _names_pattern(names: Iterable[str]) -> re.Pattern[str]:
    long_first = sorted((name for name in names if len(name) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, long_first)) if long_first else r"(?!)")


def _longest_token_bytes(tokenizer: Tokenizer, added: list[AddedToken]) -> int:
    """Most bytes of text one token can stand for; 0 if there is no bound.

    There is none when something drops or fuses text: unknown characters that become one
    token, whitespace eaten by an added token or a pre-tokenizer.
    """
    model = tokenizer.model
    unknowns_vanish = getattr(model, "unk_token", None) and not getattr(model, "byte_fallback", 0)
    if unknowns_vanish or any(token.lstrip or token.rstrip for token in added):
        return 0
    shrink = 1
    if tokenizer.normalizer is not None:
        for part in flat(json.loads(tokenizer.normalizer.__getstate__()), "normalizers"):
            shrink *= _normalizer_shrink(part)
    if tokenizer.pre_tokenizer is not None:
        for part in flat(json.loads(tokenizer.pre_tokenizer.__getstate__()), "pretokenizers"):
            keeps = part["type"] in ("ByteLevel", "Metaspace", "Digits")
            keeps = keeps or (part["type"] == "Split" and part["behavior"] != "Removed")
            shrink *= 1 if keeps else 0
    names = tokenizer.get_vocab(with_added_tokens=True)
    return shrink * max(len(name.encode()) for name in names)


def _normalizer_shrink(part: dict[str, object]) -> int:
    """Times fewer bytes after a normalizer; 0 = no bound."""
    kind = part["type"]
    if kind == "NFC":
        return 3
    if kind == "Replace" and part["pattern"] == {"String": " "}:
        return 1
    return 1 if kind == "Prepend" else 0
