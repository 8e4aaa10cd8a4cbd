"""Torch reference of the sampling kernels: rows of the packed table chosen one by one, by sorting.

Written to be read. Weights are those of exp; see kernels/sampling/choose_tokens.py for what may
differ.
"""

import torch

from kernels.sampling import rows as fields

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def choose_tokens(logits: torch.Tensor, rows: torch.Tensor | None, token_ids: torch.Tensor) -> None:
    """Write the token of each row of logits [R, V] into i64[R], as the packed `rows` say; None is
    greedy. Rows that are adjusted or counted are not for this reference."""
    for index, values in enumerate(logits.float().cpu()):
        if rows is None:
            token_ids[index] = values.argmax()
        else:
            entry = rows[index * fields.FIELDS :][: fields.FIELDS].cpu()
            token_ids[index] = _choose(values, entry)


def _choose(logits: torch.Tensor, entry: torch.Tensor) -> int:
    kind = int(entry[fields.KIND])
    if kind == fields.GREEDY:
        return int(logits.argmax())
    temperature = entry[fields.TEMPERATURE].int().view(torch.float32)
    weights = (((logits - logits.max()) / temperature).exp() * fields.WEIGHT_ONE).long()
    order = torch.arange(len(weights))
    if kind == fields.ORDERED:
        order = weights.sort(descending=True, stable=True).indices
        order = order[: int(entry[fields.TOP_K]) or len(order)]
    weights = weights[order]
    if kind == fields.ORDERED:
        sums = weights.cumsum(0)
        share = entry[fields.TOP_P].view(torch.float64)
        weights = weights.where((sums - weights).double() < share * sums[-1].double(), 0)
    sums = weights.where(_keys(weights) >= int(entry[fields.LEAST_KEY]), 0).cumsum(0)
    total = int(sums[-1])
    mark = min(
        int(_uniform(int(entry[fields.SEED]), int(entry[fields.POSITION])) * total), total - 1
    )
    return int(order[int((sums <= mark).sum())])


def _keys(weights: torch.Tensor) -> torch.Tensor:
    """As sampling_rows.weight_key; a weight here fits into an f32."""
    floats = weights.float().view(torch.int32) - (0x4B000000 - 2**23)
    return torch.where(weights < 2**23, weights, floats.long())


def _uniform(seed: int, position: int) -> float:
    """In [0, 1): SplitMix64 read as a counter."""
    bits = _mixed((_mixed((seed + GOLDEN) % 2**64) + (position + 1) * GOLDEN) % 2**64)
    return (bits >> 11) * 2.0**-53


def _mixed(bits: int) -> int:
    bits = (bits ^ bits >> 30) * MIX_1 % 2**64
    bits = (bits ^ bits >> 27) * MIX_2 % 2**64
    return bits ^ bits >> 31
