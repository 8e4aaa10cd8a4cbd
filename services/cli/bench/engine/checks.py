"""What must hold of a run for its figure to mean what it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from services.cli.bench.engine.figures.figure import Check
from services.cli.bench.engine.subject import Run
from services.cli.bench.engine.workload import Workload, repeats
from shared.model.model_size import ModelSize

CACHE_FACTOR = 4
PHASES = "time per token agrees with the median step"
MIN_DISTINCT, ENOUGH_IDS = 2, 16
"""of at least ENOUGH_IDS sampled ids, MIN_DISTINCT differ"""
PHASES_AGREE = 0.8
"""prompts are computed together with the first sequences' decode steps, so that a step may be
worth a little more than the difference of the two times"""


@dataclass(frozen=True)
class Reading:
    """What one decode step of a cell reads."""

    kv_bytes: float
    weight_bytes: int

    @classmethod
    def of(cls, size: ModelSize, num_sequences: int, context: float) -> "Reading":
        return cls(num_sequences * size.kv_read_bytes(context), size.weight_bytes)


def check_runs(
    workloads: Sequence[Workload], runs: Sequence[Run], vocab_size: int, block_size: int
) -> list[Check]:
    """Of all timed runs of one cell."""
    return [
        _prompts(workloads, block_size),
        _prefix_hits(runs),
        _sampled_ids(workloads, runs, vocab_size),
        _preemptions(runs),
    ]


def check_reading(reading: Reading, cache_bytes: int | None) -> Check:
    """A step must not find its keys in the L2 cache where the figure is made of them."""
    name = f"KV read per step > {CACHE_FACTOR} x L2"
    if cache_bytes is None:
        return Check(name, None, "not applicable: no GPU")
    kv, weights, least = reading.kv_bytes, reading.weight_bytes, CACHE_FACTOR * cache_bytes
    sizes = f"KV {kv / 1e6:.0f} MB, weights {weights / 1e6:.0f} MB, L2 {cache_bytes / 1e6:.0f} MB"
    if kv > least:
        return Check(name, True, sizes)
    if weights > least and weights > kv:
        return Check(name, None, f"not applicable, weights are most of what is read: {sizes}")
    return Check(name, False, sizes)


def check_phases(value_s: float, steps_s: float | None) -> Check:
    """The difference of two long times against the steps themselves."""
    name = PHASES
    if steps_s is None:
        return Check(name, None, "not applicable: steps are not seen")
    text = f"{value_s * 1e3:.3f} ms, by the steps {steps_s * 1e3:.3f} ms"
    agree = PHASES_AGREE * steps_s <= value_s <= steps_s / PHASES_AGREE
    return Check(name, agree, text if agree else f"{text}; is something else running here?")


def check_equal(timed: Run, eager: Run, num_tokens: int, how: str) -> Check:
    """The first tokens of every sequence against those of an untimed run."""
    name = "tokens equal to an untimed eager run's"
    pairs = list(zip(timed.token_ids, eager.token_ids, strict=True))
    differ = [
        number
        for number, (one, other) in enumerate(pairs)
        if one[:num_tokens] != other[:num_tokens]
    ]
    if not differ:
        return Check(name, True, f"{len(pairs)} sequences, {num_tokens} tokens; {how}")
    return Check(name, False, f"{len(differ)} of {len(pairs)} sequences, first {differ[0]}; {how}")


def _prompts(workloads: Sequence[Workload], block_size: int) -> Check:
    ids = set(chain.from_iterable(one.token_ids for work in workloads for one in work.requests))
    num_repeated = repeats(workloads, block_size)
    text = f"{len(ids)} distinct ids, {num_repeated} prompts begin as another one did"
    return Check("random prompts", num_repeated == 0 and len(ids) >= MIN_DISTINCT, text)


def _prefix_hits(runs: Sequence[Run]) -> Check:
    counts = [run.num_prefix_hits for run in runs if run.num_prefix_hits is not None]
    if not counts:
        return Check("prefix hits 0", None, "not applicable: not counted")
    return Check("prefix hits 0", sum(counts) == 0, f"{sum(counts)} prompt tokens")


def _preemptions(runs: Sequence[Run]) -> Check:
    counts = [run.num_preemptions for run in runs if run.num_preemptions is not None]
    if not counts:
        return Check("nothing computed twice", None, "not applicable: not counted")
    return Check("nothing computed twice", sum(counts) == 0, f"{sum(counts)} preemptions")


def _sampled_ids(workloads: Sequence[Workload], runs: Sequence[Run], vocab_size: int) -> Check:
    """LM head and sampling were part of it: each sequence's ids came back, as many as asked for,
    all in the vocabulary, and not always the same one."""
    name = "sampled ids returned, LM head and sampling timed"
    seen: set[int] = set()
    for workload, run in zip(workloads, runs, strict=True):
        for request, ids in zip(workload.requests, run.token_ids, strict=True):
            if len(ids) != request.num_output:
                return Check(name, False, f"{len(ids)} of {request.num_output} ids of a sequence")
            seen.update(ids)
    if any(not 0 <= token_id < vocab_size for token_id in seen):
        return Check(name, False, "an id outside the vocabulary")
    num_sampled = sum(workload.num_output_tokens for workload in workloads)
    text = f"{num_sampled} ids, {len(seen)} distinct"
    return Check(name, len(seen) >= MIN_DISTINCT or num_sampled < ENOUGH_IDS, text)
