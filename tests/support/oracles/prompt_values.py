"""Log-probabilities of a prompt put together from the pieces that an engine or a worker tells."""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from shared.message_parts.prompt_logprobs import PromptLogprobs, floats, whole_numbers


class TokenValues(NamedTuple):
    """Of one token of a prompt."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def values_of(pieces: Iterable[PromptLogprobs]) -> list[TokenValues]:
    """From the prompt's second token on; the pieces have no gap and no overlap."""
    values: list[TokenValues] = []
    for piece in pieces:
        assert piece.first == 1 + len(values)
        logprobs, ranks = floats(piece.logprobs), whole_numbers(piece.ranks)
        ids, tops = whole_numbers(piece.top_ids), floats(piece.top_logprobs)
        k = len(ids) // piece.num_tokens
        assert len(logprobs) == len(ranks) and len(ids) == len(tops) == k * len(logprobs)
        values += [
            TokenValues(
                logprobs[at],
                int(ranks[at]),
                tuple(map(int, ids[k * at : k * (at + 1)])),
                tuple(tops[k * at : k * (at + 1)]),
            )
            for at in range(piece.num_tokens)
        ]
    return values


def piece_of(values: Sequence[TokenValues], first: int = 1) -> PromptLogprobs:
    """As a worker tells them."""
    return PromptLogprobs(
        first,
        array("f", [one.logprob for one in values]).tobytes(),
        array("I", [one.rank for one in values]).tobytes(),
        array("I", [each for one in values for each in one.top_ids]).tobytes(),
        array("f", [each for one in values for each in one.top_logprobs]).tobytes(),
    )


def values_from(logits: torch.Tensor, prompt: Iterable[int], num_top: int) -> list[TokenValues]:
    """By the definition, from the logits [T, V] behind each token of a prompt."""
    values = []
    table = logits.float().log_softmax(-1)
    for row, token_id in zip(table, list(prompt)[1:], strict=False):
        order = sorted(range(len(row)), key=lambda each: (-float(row[each]), each))[:num_top]
        rank = int((row >= row[token_id]).sum())
        top = tuple(float(row[each]) for each in order)
        values.append(TokenValues(float(row[token_id]), rank, tuple(order), top))
    return values
