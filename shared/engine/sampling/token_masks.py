"""Tokens that must not come next: endings before min_tokens, and what a grammar does not allow.

A masked token has logit -inf, so neither argmax nor a draw can choose it.
"""

from collections.abc import Sequence

import numpy as np
import torch

from shared.engine.sampling.sample_row import SampleRow

MASKED = float("-inf")


def awaits_more(row: SampleRow) -> bool:
    """Its min_tokens are not reached."""
    return row.num_output_tokens < row.sampling.min_tokens


def is_restricted(row: SampleRow) -> bool:
    return row.allowed is not None or awaits_more(row)


def mask_(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Set what must not come next to -inf in each row of logits, f32[R, V], in place.

    A grammar is a promise and min_tokens a wish: where a row's endings are all that its grammar
    allows, or all that the vocabulary has, they stay.
    """
    free, bound = [], []
    for index, row in enumerate(rows):
        if row.allowed is not None:
            bound.append(index)
        elif awaits_more(row):
            free.append(index)
    at_rows, at_ids = _endings(rows, free, logits)
    if len(at_rows):
        logits[at_rows, at_ids] = MASKED
    if bound:
        at = torch.tensor(bound, device=logits.device)
        logits[at] = logits[at].minimum(_bounds([rows[index] for index in bound], logits))


def _bounds(rows: Sequence[SampleRow], logits: torch.Tensor) -> torch.Tensor:
    """f32[len(rows), V] for rows with a grammar: +inf where a token may come next, else -inf."""
    bounds = _unpacked([row.allowed for row in rows if row.allowed is not None], logits)
    early = [index for index, row in enumerate(rows) if awaits_more(row)]
    at_rows, at_ids = _endings(rows, early, logits)
    if not len(at_rows):
        return bounds
    longer = bounds.clone()
    longer[at_rows, at_ids] = MASKED
    return torch.where(longer.amax(dim=-1, keepdim=True) > 0, longer, bounds)


def _unpacked(bitmasks: list[torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
    """f32[len(bitmasks), V] of i32[words] each: +inf per bit that is set, -inf per other token.

    By a table of the 256 bytes and a minimum, because shifting bits and filling by a boolean
    mask take several times as long.
    """
    device, vocab_size = logits.device, logits.shape[-1]
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    table = torch.from_numpy(np.where(bits, np.float32(-MASKED), np.float32(MASKED))).to(device)
    words = torch.stack(bitmasks)
    octets = words.view(torch.uint8).to(device).int()
    bounds = table.index_select(0, octets.flatten()).view(len(bitmasks), -1)
    missing = max(0, vocab_size - bounds.shape[1])
    return torch.nn.functional.pad(bounds, (0, missing), value=MASKED)[:, :vocab_size]


def _endings(
    rows: Sequence[SampleRow], indexes: list[int], logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, token id) of every token that could end one of these rows, each i64[cells]; nothing
    of a row that has no other token."""
    at_rows: list[int] = []
    at_ids: list[int] = []
    vocab_size = logits.shape[-1]
    for index in indexes:
        sampling = rows[index].sampling
        endings = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            endings.update(sampling.eos_token_ids)
        masked = [token_id for token_id in endings if 0 <= token_id < vocab_size]
        if len(masked) < vocab_size:
            at_rows += [index] * len(masked)
            at_ids += masked
    return (
        torch.tensor(at_rows, dtype=torch.int64, device=logits.device),
        torch.tensor(at_ids, dtype=torch.int64, device=logits.device),
    )
