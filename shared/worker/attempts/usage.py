"""What attempts use of their worker: each has its share of every step that computes it.

A step's time is divided by the tokens it computes, so the shares of its sequences sum to it. A step
lasts from its begin, or the end of the step before it where that was still running, until its
tokens are known; so it is the device's time and, where the device waits for the host, that.

Alone a sequence would have had its share and what any step takes. What a step takes beyond that is
time that the others in it cost the sequence, in proportion to their tokens: those of prompts'
chunks stretch it, those of other sequences crowd it.

The KV blocks of a prompt are taken with its first step or before its KV arrives, one more with each
block that the answer fills. A preempted sequence is counted as if it kept them, and those that
several sequences share count for each.
"""

from dataclasses import dataclass

from shared.kv.layout import KVLayout, num_blocks_for
from shared.telemetry import attributes as names
from shared.worker.attempts.table import AttemptTable, HeldAttempt, Usage
from shared.worker.channel import StepReport


@dataclass(frozen=True, slots=True)
class StepShares:
    """How a step's time is divided; in ns, wall-clock."""

    step_ns: int
    num_tokens: int
    """that it computed"""
    num_chunk_tokens: int
    """of those, of prompts"""
    fixed_ns: float
    """of any step, whatever it computes"""

    @classmethod
    def of(cls, report: StepReport) -> "StepShares":
        chunked = {attempt for attempt, _ in report.chunks}
        num_chunk_tokens = sum(num_tokens for _, num_tokens in report.chunks)
        num_rows = len(report.tokens)
        if chunked:
            num_rows -= sum(run.attempt in chunked for run in report.tokens)
        fixed_ns = report.load.step_costs.step_s * 1e9
        step_ns = report.end_ns - report.start_ns
        return cls(step_ns, num_chunk_tokens + num_rows, num_chunk_tokens, fixed_ns)

    def of_tokens(self, num_own: int, *, chunk: bool) -> tuple[float, float, float]:
        """Of a sequence that has that many: its share, by how much others crowd it, and by how
        much chunks of other prompts stretch it."""
        share_ns = self.step_ns * num_own / self.num_tokens
        num_others = self.num_tokens - num_own
        if not num_others:
            return share_ns, 0.0, 0.0
        lost_ns = max(0.0, self.step_ns - self.fixed_ns - share_ns)
        num_chunked = self.num_chunk_tokens - chunk * num_own
        other_ns = lost_ns / num_others
        return share_ns, other_ns * (num_others - num_chunked), other_ns * num_chunked


def note_step(attempts: AttemptTable, report: StepReport, layout: KVLayout) -> None:
    """Each attempt that the step computed gets its share. Once a step, before it is told."""
    step = StepShares.of(report)
    if not step.num_tokens:
        return
    for attempt, num_tokens in report.chunks:
        held = attempts.get(attempt)
        if held is not None:
            _note_chunk(held.usage, step, num_tokens)
            _take_blocks(held, layout, report.end_ns)
    _note_rows(attempts, report, step, layout)


def _note_rows(
    attempts: AttemptTable, report: StepReport, step: StepShares, layout: KVLayout
) -> None:
    """All rows of a step have the same; a chunk's last token is no row."""
    chunked = {attempt for attempt, _ in report.chunks}
    step_ns, get = step.step_ns, attempts.get
    share_ns, crowded_ns, stretched_ns = step.of_tokens(1, chunk=False)
    for run in report.tokens:
        attempt = run[:2]  # equal to an Attempt, and made in a fifth of its time
        if (held := get(attempt)) is None or (chunked and attempt in chunked):
            continue
        usage = held.usage
        usage.step_ns += step_ns
        usage.compute_ns += share_ns
        usage.crowded_ns += crowded_ns
        if stretched_ns:
            usage.stretched_ns += stretched_ns
        usage.num_kv_tokens += 1
        if usage.num_kv_tokens > usage.num_kv_positions:
            _take_blocks(held, layout, report.end_ns)


def told(held: HeldAttempt, now_ns: int) -> dict[str, str | int | float | bool]:
    """Attributes of a span: what was used since the last `taken`."""
    usage = held.usage
    usage.count_kv(now_ns)
    return {
        names.STEP_MS: round(usage.step_ns / 1e6, 3),
        names.COMPUTE_MS: round(usage.compute_ns / 1e6, 3),
        names.CROWDED_MS: round(usage.crowded_ns / 1e6, 3),
        names.STRETCHED_MS: round(usage.stretched_ns / 1e6, 3),
        names.KV_BYTE_SECONDS: round(usage.kv_byte_ns / 1e9, 3),
    }


def taken(held: HeldAttempt, now_ns: int) -> dict[str, str | int | float | bool]:
    """The same; what follows is told apart."""
    attributes, usage = told(held, now_ns), held.usage
    usage.step_ns = usage.compute_ns = usage.crowded_ns = usage.stretched_ns = 0.0
    usage.kv_byte_ns = 0.0
    return attributes


def _note_chunk(usage: Usage, step: StepShares, num_tokens: int) -> None:
    share_ns, crowded_ns, stretched_ns = step.of_tokens(num_tokens, chunk=True)
    usage.step_ns += step.step_ns
    usage.compute_ns += share_ns
    usage.crowded_ns += crowded_ns
    usage.stretched_ns += stretched_ns


def _take_blocks(held: HeldAttempt, layout: KVLayout, now_ns: int) -> None:
    """It has as many as its prompt and its answer need by now."""
    usage = held.usage
    if not usage.kv_since_ns:
        usage.kv_since_ns = held.reserved_ns or held.started_ns or now_ns
        usage.num_kv_tokens += held.num_work_tokens
        num_blocks = num_blocks_for(held.num_work_tokens, layout.block_size)
        usage.kv_bytes = num_blocks * layout.block_bytes
    usage.count_kv(now_ns)
    num_blocks = num_blocks_for(usage.num_kv_tokens, layout.block_size)
    usage.kv_bytes = num_blocks * layout.block_bytes
    usage.num_kv_positions = num_blocks * layout.block_size
