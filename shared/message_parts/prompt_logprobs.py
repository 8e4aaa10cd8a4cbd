"""Log-probabilities of a prompt's tokens, on their way from the step that computed them to whoever
asked for them.

A long prompt has some hundred thousand numbers, so they travel packed, in pieces of at most
MAX_PIECE_TOKENS tokens, and are unpacked where they are shown.
"""

import sys
from array import array
from typing import NamedTuple, TypeVar

from shared.errors import ProtocolError

MAX_PIECE_TOKENS = 1024
"""of one piece: with 20 alternatives each it has 0.2 MB, and looking it through takes 1 ms"""
NUMBER_BYTES = 4
Numbers = TypeVar("Numbers", "array[float]", "array[int]")


class PromptLogprobs(NamedTuple):
    """Of consecutive tokens of a prompt, from the model's own distribution behind those before
    each. Numbers are little-endian, 4 bytes each."""

    first: int
    """index in the prompt of the first of these tokens; at least 1: nothing is before token 0"""
    logprobs: bytes
    """a float for each token"""
    ranks: bytes
    """for each token, how many of the vocabulary are as likely at least; 1 is the likeliest"""
    top_ids: bytes
    """K ids for each token, the likeliest first"""
    top_logprobs: bytes
    """as many floats"""

    @property
    def num_tokens(self) -> int:
        return len(self.logprobs) // NUMBER_BYTES


def check_piece(piece: PromptLogprobs, num_top: int, vocab_size: int) -> None:
    """ProtocolError unless it says as much of each token as it should, `num_top` alternatives, and
    of tokens of the vocabulary only."""
    size, top = len(piece.logprobs), num_top * len(piece.logprobs)
    sizes = [len(part) for part in piece[1:]]
    if piece.first < 1 or size % NUMBER_BYTES or sizes != [size, size, top, top]:
        raise ProtocolError("log-probabilities of a prompt that do not fit each other")
    if max(whole_numbers(piece.top_ids), default=0) >= vocab_size:
        raise ProtocolError("log-probabilities of tokens outside the vocabulary")


def num_bytes(num_tokens: int, num_top: int) -> int:
    """What the values of a prompt hold, packed."""
    return NUMBER_BYTES * num_tokens * (2 + 2 * num_top)


def floats(packed: bytes) -> "array[float]":
    return _native(array("f", packed))


def whole_numbers(packed: bytes) -> "array[int]":
    return _native(array("I", packed))


def _native(numbers: Numbers) -> Numbers:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
