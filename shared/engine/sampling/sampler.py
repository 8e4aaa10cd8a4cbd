"""Chooses the next token of each row on the device; ids reach the host once per step.

In this order: logit_bias is added; repetition penalty over prompt and output; frequency and
presence penalty over the output; endings before min_tokens and what a grammar does not allow are
masked. A greedy row takes the likeliest of what is left. Any other row goes on: temperature,
top-k, top-p of what top-k left, and min-p, a share of the likeliest token's probability after
temperature. Logprobs are of the raw logits, before all of it.

A row's token depends on its logits, its sampling parameters, its own tokens so far and its
position only, never on what shares the batch: the draw is counter-based, and probabilities become
integer weights, so that sums over the vocabulary are exact in any order and on any device.
"""

import math
from collections.abc import Sequence

import torch

from kernels.sampling.rows import WEIGHT_ONE
from shared.engine.sampling.penalties import add_bias_, penalise_
from shared.engine.sampling.random_draw import as_int64, uniform
from shared.engine.sampling.raw_logprobs import ID_BITS, MAX_ID, raw_logprobs
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampled_tokens import HostTokens, SampledToken
from shared.engine.sampling.token_masks import is_restricted, mask_
from shared.protocol import GREEDY_BELOW


class Sampler:
    """Every way of choosing that a `Sampling` can name."""

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> HostTokens:
        """One token per row of logits, [R, V]; 16-bit ones are widened, all stay as they are."""
        if not rows:
            return HostTokens(torch.empty(0, dtype=torch.int64, device=logits.device), [])
        logits = logits.float()
        adjusted = _adjust(logits, rows)
        token_ids = adjusted.argmax(dim=-1)
        for num_ordered, indexes in _random_rows(rows, logits.shape[-1]).items():
            drawing = [rows[index] for index in indexes]
            at = torch.tensor(indexes, device=logits.device)
            token_ids[at] = _draw_tokens(adjusted[at], drawing, num_ordered)
        logprobs = raw_logprobs(logits, token_ids, rows)
        by_row = {} if logprobs is None else logprobs.by_row()
        tokens = [
            SampledToken(token_id, by_row.get(index))
            for index, token_id in enumerate(token_ids.tolist())
        ]
        return HostTokens(token_ids, tokens)


def _adjust(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Logits as each row wants them before the choice, f32[R, V]; the same tensor where no row
    wants anything."""
    if not any(row.bias or row.counts or is_restricted(row) for row in rows):
        return logits
    adjusted = logits.clone(memory_format=torch.contiguous_format)
    add_bias_(adjusted, rows)
    penalise_(adjusted, rows)
    mask_(adjusted, rows)
    return adjusted


def _random_rows(rows: Sequence[SampleRow], vocab_size: int) -> dict[int, list[int]]:
    """Rows to draw for, by how many candidates they need in order: a whole vocabulary for top-p,
    none at all where neither top-k nor top-p cuts."""
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        sampling = row.sampling
        if sampling.temperature < GREEDY_BELOW:
            continue
        num_ordered = min(sampling.top_k, vocab_size)
        if num_ordered == 0 and sampling.top_p < 1.0:
            num_ordered = vocab_size
        groups.setdefault(num_ordered, []).append(index)
    return groups


def _draw_tokens(logits: torch.Tensor, rows: Sequence[SampleRow], num_ordered: int) -> torch.Tensor:
    """i64[R] drawn in proportion to the weights, by inversion of their running sum."""
    device = logits.device
    weights = _weights(logits, [row.sampling.temperature for row in rows])
    token_ids = None
    if num_ordered:
        weights, token_ids = _likeliest(weights, num_ordered)
        weights = _cut_top_p(weights, [row.sampling.top_p for row in rows])
    if any(row.sampling.min_p > 0 for row in rows):
        weights = _cut_min_p(weights, [row.sampling.min_p for row in rows])
    seeds = torch.tensor([as_int64(row.sampling.seed) for row in rows], device=device)
    positions = torch.tensor([row.position for row in rows], device=device)
    sums = weights.cumsum(dim=-1)
    total = sums[:, -1]
    mark = (uniform(seeds, positions) * total.double()).long().minimum(total - 1)
    chosen = torch.searchsorted(sums, mark[:, None], right=True)
    return (chosen if token_ids is None else token_ids.gather(-1, chosen))[:, 0]


def _weights(logits: torch.Tensor, temperatures: list[float]) -> torch.Tensor:
    """i64[R, V]: exp((logit - max) / T), the likeliest token at WEIGHT_ONE."""
    scale = torch.tensor(temperatures, dtype=torch.float32, device=logits.device)[:, None]
    scaled = (logits - logits.amax(dim=-1, keepdim=True)).div_(scale)
    return scaled.exp_().mul_(WEIGHT_ONE).long()


def _likeliest(weights: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest weights in order and their ids, each i64[R, count].

    Of equal weights the lower id comes first: it is packed under the weight, so no two keys are
    equal and any selection algorithm gives the same order.
    """
    ids = torch.arange(weights.shape[-1], device=weights.device)
    keys = (weights << ID_BITS) + (MAX_ID - ids)
    top = keys.topk(count, dim=-1).values
    return top >> ID_BITS, MAX_ID - torch.bitwise_and(top, MAX_ID)


def _cut_top_p(weights: torch.Tensor, top_p: list[float]) -> torch.Tensor:
    """Descending weights with all beyond the smallest set whose mass reaches p at 0: a token
    stays while the mass before it is below p."""
    shares = torch.tensor(top_p, dtype=torch.float64, device=weights.device)[:, None]
    sums = weights.cumsum(dim=-1)
    wanted = shares * sums[:, -1:].double()
    return weights.masked_fill((sums - weights).double() >= wanted, 0)


def _cut_min_p(weights: torch.Tensor, min_p: list[float]) -> torch.Tensor:
    """Weights with all below this share of the likeliest token's at 0. The likeliest is at
    WEIGHT_ONE and stays for any share up to 1."""
    least = torch.tensor([math.ceil(share * WEIGHT_ONE) for share in min_p], device=weights.device)
    return weights.masked_fill(weights < least[:, None], 0)
