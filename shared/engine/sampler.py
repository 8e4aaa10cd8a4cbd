"""Chooses the next token of each row on the device; ids reach the host once per step.

A row's token depends on its logits, its sampling parameters and its position only, never on
what shares the batch: the draw is counter-based, and probabilities become integer weights, so
that sums over the vocabulary are exact in any order and on any device.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from shared.engine.random_draw import as_int64, uniform
from shared.protocol import Sampling, TokenLogprobs

GREEDY_BELOW = 1e-3
"""temperatures under this are greedy: logits / T overflows or leaves no second candidate"""

WEIGHT_ONE = 2.0**40
"""integer weight of the likeliest token; a vocabulary of such weights sums below 2**63"""

ID_BITS = 22
MAX_ID = 2**ID_BITS - 1
"""largest token id; weight and id fit into one int64"""


class SampleRow(NamedTuple):
    """One row of logits to choose from."""

    sampling: Sampling
    position: int
    """index the new token will have in its sequence"""
    num_output_tokens: int
    """output tokens before it, for min_tokens"""


class SampledToken(NamedTuple):
    """A chosen token, on the host."""

    token_id: int
    logprobs: TokenLogprobs | None


class Sampler:
    """Greedy, temperature, top-k, top-p, seed, min_tokens and logprobs."""

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
        """One token per row of logits, f32[R, V]; logits stay as they are."""
        if not rows:
            return []
        allowed = _mask_endings(logits, rows)
        token_ids = allowed.argmax(dim=-1)
        for num_ordered, indexes in _random_rows(rows, logits.shape[-1]).items():
            drawing = [rows[index] for index in indexes]
            at = torch.tensor(indexes, device=logits.device)
            token_ids[at] = _draw_tokens(allowed[at], drawing, num_ordered)
        logprobs = _logprobs(logits, token_ids, rows)
        return [
            SampledToken(token_id, logprobs.get(index))
            for index, token_id in enumerate(token_ids.tolist())
        ]


def _mask_endings(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Logits with EOS and stop ids at -inf where min_tokens are not reached.

    A row whose every token would be masked is left as it is.
    """
    at_rows: list[int] = []
    at_ids: list[int] = []
    vocab_size = logits.shape[-1]
    for index, (sampling, _, num_output_tokens) in enumerate(rows):
        if num_output_tokens >= sampling.min_tokens:
            continue
        endings = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            endings.update(sampling.eos_token_ids)
        masked = [token_id for token_id in endings if 0 <= token_id < vocab_size]
        if len(masked) < vocab_size:
            at_rows += [index] * len(masked)
            at_ids += masked
    if not at_rows:
        return logits
    masked_logits = logits.clone()
    masked_logits[
        torch.tensor(at_rows, device=logits.device), torch.tensor(at_ids, device=logits.device)
    ] = float("-inf")
    return masked_logits


def _random_rows(rows: Sequence[SampleRow], vocab_size: int) -> dict[int, list[int]]:
    """Rows to draw for, by how many candidates they need in order: a whole vocabulary for top-p,
    none at all where neither top-k nor top-p cuts."""
    groups: dict[int, list[int]] = {}
    for index, (sampling, _, _) in enumerate(rows):
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


def _logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, rows: Sequence[SampleRow]
) -> dict[int, TokenLogprobs]:
    """By row that asks for them: log-softmax of the raw logits at the chosen and top ids."""
    asking = [index for index, row in enumerate(rows) if row.sampling.logprobs >= 0]
    if not asking:
        return {}
    at = torch.tensor(asking, device=logits.device)
    table = logits[at].float().log_softmax(dim=-1)
    chosen = table.gather(-1, token_ids[at, None])[:, 0].tolist()
    counts = [min(rows[index].sampling.logprobs, logits.shape[-1]) for index in asking]
    top_ids = _most_probable(table, max(counts))
    top_values = table.gather(-1, top_ids).tolist()
    top_ids_host = top_ids.tolist()
    return {
        index: TokenLogprobs(
            chosen[row], tuple(top_ids_host[row][:count]), tuple(top_values[row][:count])
        )
        for row, (index, count) in enumerate(zip(asking, counts, strict=True))
    }


def _most_probable(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest of each row, i64[R, count], the lower id first among equals.

    The bits of non-negative floats order like the floats, so -logprob and id pack into one key.
    """
    ids = torch.arange(logprobs.shape[-1], device=logprobs.device)
    keys = (logprobs.abs().view(torch.int32).long() << ID_BITS) + ids
    return torch.bitwise_and(keys.topk(count, dim=-1, largest=False).values, MAX_ID)
