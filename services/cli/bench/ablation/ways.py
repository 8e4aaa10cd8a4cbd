"""Ways to answer the same prompts with one engine: with and without its KV, alone and together.

The engine has no switch for doing without KV. It is asked for one token, and asked again with that
token at the end of the prompt; without a prefix cache it then computes all of it again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from services.cli.bench.ablation.gaps import Gaps
from services.cli.bench.ablation.kept_blocks import KeptBlocks
from services.cli.bench.engine.baton_subject import BatonSubject
from services.cli.bench.engine.workload import Request, Workload
from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput

Tokens = tuple[int, ...]
Way = Callable[[BatonSubject, Workload, int], "Answers"]
"""(engine, prompts, sequences at once)"""


@dataclass(frozen=True)
class Answers:
    """All tokens, and what they took."""

    token_ids: tuple[Tokens, ...]
    """by request, in order"""
    elapsed_s: float
    gap_s: float
    """from a token of an answer to its next, on average"""
    num_prefix_hits: int
    """prompt tokens that the prefix cache had"""
    kept: KeptBlocks


def recomputed(subject: BatonSubject, workload: Workload, width: int) -> Answers:
    """No KV is kept: each token computes its whole sequence again, `width` sequences at a time."""
    answers: list[list[int]] = [[] for _ in workload.requests]
    gaps, kept = Gaps(), KeptBlocks(subject.engine, subject.block_size)
    elapsed_s, num_hits = 0.0, 0
    unanswered = list(range(len(answers)))
    while unanswered:
        now = unanswered[:width]
        longer = [workload.requests[at].token_ids + tuple(answers[at]) for at in now]
        run = subject.run(Workload(tuple(Request(token_ids, 1) for token_ids in longer)))
        kept.note(subject.engine)
        elapsed_s += run.elapsed_s
        num_hits += run.num_prefix_hits or 0
        for at, token_ids in zip(now, run.token_ids, strict=True):
            answers[at].extend(token_ids)
            gaps.note(at, elapsed_s)
        unanswered = [
            at for at in unanswered if len(answers[at]) < workload.requests[at].num_output
        ]
    return Answers(tuple(map(tuple, answers)), elapsed_s, gaps.mean_s, num_hits, kept)


def continued(subject: BatonSubject, workload: Workload, width: int) -> Answers:
    """With KV. One sequence at a time if `width` is 1, else by continuous batching in the engine's
    places, of which there must be `width`."""
    parts = [workload]
    if width == 1:
        parts = [Workload((request,)) for request in workload.requests]
    gaps, kept = Gaps(), KeptBlocks(subject.engine, subject.block_size)
    token_ids: list[Tokens] = []
    elapsed_s, num_hits = 0.0, 0

    def note(engine: Engine, output: StepOutput) -> None:
        now_s = time.perf_counter()
        for run in output.tokens:
            gaps.note(run.rid, now_s)
        kept.note(engine)

    with subject.watched(note):
        for part in parts:
            run = subject.run(part)
            elapsed_s += run.elapsed_s
            num_hits += run.num_prefix_hits or 0
            token_ids += run.token_ids
    return Answers(tuple(token_ids), elapsed_s, gaps.mean_s, num_hits, kept)
