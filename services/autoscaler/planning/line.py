"""The line of now, whose fault it is, and how many workers clear it: what no past tells.

Pure. A line is measured in seconds that one worker needs for it, so n workers clear it n times as
fast, whatever the role.

    prompts wait, nobody prefills -----------------------------> decode's line: it does both
    prompts wait at prefill -- its pool is full of sealed KV --> decode's debt: it does not pull
                            -- as many tokens' KV waits for
                               blocks of decode ---------------> decode's debt: computed sooner,
                                                                 they would wait there
                            -- else ---------------------------> prefill's line
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.autoscaler.planning.prefill_replay import PrefillReplay, computing_s
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import LOOK_S, Arrival, RoleView, View, WorkerView

FULL_OF_SEALED = 0.5
"""of a pool: sealed KV that takes more of it than anything else can, and leaves no place for one
more step, is why nothing is computed"""
RECENT_S = 30.0
"""what came in this time is what comes next; shorter is one burst, longer hides the rise"""
LEAST_LIMIT_S = 0.01
"""no line clears sooner than a step; keeps a promise of 0 s from asking for endless workers"""


@dataclass(frozen=True)
class Line:
    """What waits for one role."""

    work_s: float = 0.0
    """of one worker, until all of it is served"""
    comes: float = 0.0
    """seconds of such work that arrive each second; not looked for where nothing waits"""


@dataclass(frozen=True)
class Patience:
    """How long is waited for what."""

    start_s: float
    """for a worker that is ordered now"""
    limit_s: float
    """for a line to clear as it is; no more is ordered for a shorter one"""
    clear_s: float
    """for a longer one to clear, once those that are ordered for it are there"""

    @classmethod
    def of(cls, view: View) -> "Patience":
        """While a line clears whoever comes is late, so it may last as long as the promise lets
        requests be late in a quarter of an hour. A line that had to clear at once would order
        workers for minutes, as none goes sooner, that are of use for a second."""
        promise = view.promise
        limit_s = max(LEAST_LIMIT_S, promise.wait_s)
        return cls(view.start_s, limit_s, max(limit_s, (1 - promise.target) * LOOK_S))


@dataclass(frozen=True)
class WaitingTokens:
    """Prompt tokens that wait, by the role that keeps them."""

    prefill: float
    decode: float

    @classmethod
    def of(cls, view: View) -> "WaitingTokens":
        prefill, decode = _serving(view.roles.get("prefill")), _serving(view.roles.get("decode"))
        if view.is_aggregated:
            queued = sum(worker.num_queued_tokens for worker in decode)
            return cls(0.0, view.waiting.num_tokens + queued)
        unreserved = sum(worker.num_unreserved_tokens for worker in decode)
        stuck = [worker for worker in prefill if is_full_of_sealed(worker)]
        blamed = view.waiting.num_tokens * len(stuck) / max(1, len(prefill))
        blamed += sum(worker.num_queued_tokens for worker in stuck)
        queued = sum(worker.num_queued_tokens for worker in prefill)
        own = view.waiting.num_tokens + queued - blamed - unreserved
        return cls(max(0.0, own), blamed + unreserved)


def is_full_of_sealed(worker: WorkerView) -> bool:
    """Whether KV that decode does not pull leaves this prefill worker no place for a step."""
    return (
        worker.num_held_blocks > FULL_OF_SEALED * worker.num_blocks
        and worker.num_free_blocks * worker.block_size < worker.step_tokens
    )


def prefill_line(view: View, replay: PrefillReplay, worker: TypicalWorker) -> Line:
    waiting = WaitingTokens.of(view).prefill
    if not waiting:
        return Line()
    num_uncached = sum(
        max(1, item.num_prompt_tokens - item.num_cached_tokens) for item in view.judged
    )
    if num_uncached:
        token_s = sum(takes_s for _, takes_s in replay.prompts) / num_uncached
    else:
        num_tokens = max(1, worker.step_tokens)
        token_s = computing_s([Arrival(0.0, num_tokens)], worker)[0] / num_tokens
    num_recent = len(view.latest(RECENT_S))
    recent_s = sum(takes_s for _, takes_s in replay.prompts[len(replay.prompts) - num_recent :])
    return Line(waiting * token_s, recent_s / RECENT_S)


def decode_line(view: View, worker: TypicalWorker) -> Line:
    waiting = WaitingTokens.of(view).decode
    if not view.judged or not waiting:
        return Line()
    num_prompt = _mean_tokens(view.judged)
    answer_s = _answer_s(view.judged, worker)
    return Line(waiting / num_prompt * answer_s, len(view.latest(RECENT_S)) * answer_s / RECENT_S)


def mixed_line(view: View, takes_s: Sequence[float], worker: TypicalWorker) -> Line:
    """Prompts that wait for workers that do both, with their answers. `takes_s`: what the prompts
    of all that is judged take."""
    waiting = WaitingTokens.of(view).decode
    if not view.judged or not waiting:
        return Line()
    request_s = sum(takes_s) / len(takes_s) + _answer_s(view.judged, worker)
    num_requests = waiting / _mean_tokens(view.judged)
    return Line(num_requests * request_s, len(view.latest(RECENT_S)) * request_s / RECENT_S)


def _answer_s(arrivals: Sequence[Arrival], worker: TypicalWorker) -> float:
    """An answer takes its worker for the time it runs in a full batch, divided by that batch."""
    num_requests = len(arrivals)
    num_prompt = _mean_tokens(arrivals)
    num_output = max(1.0, sum(item.num_output_tokens for item in arrivals) / num_requests)
    num_rows = max(1.0, worker.num_blocks * worker.block_size / (num_prompt + num_output))
    costs, context = worker.costs, num_prompt + num_output / 2
    step_s = costs.step_s + num_rows * (costs.row_s + costs.context_token_s * context)
    return num_output * step_s / num_rows


def _mean_tokens(arrivals: Sequence[Arrival]) -> float:
    """Of a prompt."""
    return max(1.0, sum(item.num_prompt_tokens for item in arrivals) / len(arrivals))


def workers_to_clear(
    line: Line, num_ready: int, coming_s: Sequence[float], patience: Patience
) -> float:
    """Workers that clear the line in time, once one ordered now has started; 0 if those that are
    ready, or coming, do.

    `coming_s`: how long each that is ordered already will still take to start.
    """
    start_s, limit_s = patience.start_s, patience.limit_s
    if line.work_s <= limit_s * num_ready:
        return 0
    done_s = num_ready * start_s + sum(max(0.0, start_s - left_s) for left_s in coming_s)
    left_s = line.work_s + line.comes * start_s - done_s
    if left_s <= limit_s * (num_ready + len(coming_s)):
        return 0
    return left_s / patience.clear_s + line.comes


def _serving(role: RoleView | None) -> list[WorkerView]:
    return [worker for worker in role.workers if not worker.is_draining] if role else []
