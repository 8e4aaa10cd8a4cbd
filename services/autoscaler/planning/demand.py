"""How many workers a role should have: what the past needed, or more where a line stands.

Pure. Where nobody knows what a worker can do, or nobody came although somebody is served, nothing
is demanded: what is there stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from services.autoscaler.planning.decode_replay import DecodeReplay
from services.autoscaler.planning.kept import Kept, kept
from services.autoscaler.planning.line import (
    Line,
    Patience,
    decode_line,
    is_full_of_sealed,
    mixed_line,
    prefill_line,
    workers_to_clear,
)
from services.autoscaler.planning.mixed_replay import MixedReplay
from services.autoscaler.planning.need import Replay, sentence, smallest_need
from services.autoscaler.planning.pool import Pool
from services.autoscaler.planning.prefill_replay import PrefillReplay, computing_s
from services.autoscaler.planning.trend import growth
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Role, View

LAST_S = 60.0
LONG_S = 600.0
"""from here on minutes are said, not seconds"""
LAST_TARGET = 0.9
"""of the last minute, or the promise where that is less: what came since the window's mean, however
short, is not to be served badly for as long as a window remembers"""


@dataclass(frozen=True)
class Demand:
    """What one role should have."""

    num_workers: int
    """between the least and the cap"""
    cap: int
    """no more may be had"""
    reason: str
    replay: Replay | None = None
    """None: nothing is known, so nothing is taken away"""
    replayed: int = 0
    """what the past alone needed"""
    least: int = 0
    """that somebody has to serve"""
    doubt: str = ""
    """why the replay is no reason to take anything away"""


def demands(view: View, pools: Mapping[Role, Pool]) -> dict[Role, Demand]:
    """Of each role there is."""
    workers = {role: TypicalWorker.of(pool.view.workers) for role, pool in pools.items()}
    prefill, decode = workers.get("prefill"), workers.get("decode")
    found = {role: _unknown(view, pool) for role, pool in pools.items()}
    computes = prefill or decode
    takes_s = computing_s(view.arrivals, computes) if computes else []
    num_before = len(view.arrivals) - len(view.judged)
    judged_s = takes_s[num_before:]
    grows, since_s = _growth(view), view.now_s - view.look_s
    if view.is_aggregated and decode and decode.num_blocks > 0:
        both = MixedReplay.of(view.arrivals, takes_s, decode, view.promise, since_s, grows)
        line = mixed_line(view, judged_s, decode)
        return {"decode": _demand(view, pools["decode"], both, line, judged_s)}
    if prefill:
        prompts = PrefillReplay.of(view.judged, judged_s, view.promise.wait_s, grows)
        line = prefill_line(view, prompts, prefill)
        found["prefill"] = _demand(view, pools["prefill"], prompts, line, judged_s)
    if decode and decode.num_blocks > 0:
        answers = DecodeReplay.of(view.arrivals, takes_s, decode, view.promise, since_s, grows)
        line = decode_line(view, decode)
        found["decode"] = _demand(view, pools["decode"], answers, line, judged_s)
    return found


def _demand(view: View, pool: Pool, replay: Replay, line: Line, takes_s: Sequence[float]) -> Demand:
    """`takes_s`: the computing of the prompt of each request that is judged."""
    least, cap = _least(view, pool), pool.cap
    num_replayed, reason = _replayed(view, pool, replay, least)
    had = _kept(view, pool, takes_s)
    reason = ": ".join(filter(None, (reason, had.text)))
    num_clearing = ceil(min(cap, _clearing(view, pool, line)))
    if num_clearing > num_replayed:
        reason = f"{line.work_s:.1f} s of one {pool.role} worker's work wait now; {reason}"
    num_workers = min(cap, max(num_replayed, num_clearing))
    doubt = _doubt(view, pool, replay, had)
    return Demand(num_workers, cap, reason, replay, num_replayed, least, doubt)


def _kept(view: View, pool: Pool, takes_s: Sequence[float]) -> Kept:
    """What users really had of what this role has a part in."""
    prompts = view.is_aggregated or pool.role == "prefill"
    answers = view.is_aggregated or pool.role == "decode"
    return kept(view.judged, takes_s, view.promise, prompts=prompts, answers=answers)


def _doubt(view: View, pool: Pool, replay: Replay, had: Kept) -> str:
    """A replay that is far better than what was is too good for fewer workers as well."""
    if not had.belies(view.promise.target):
        return ""
    replayed = replay.share(max(1, pool.replicas))
    if not had.belies(replayed):
        return ""
    return f"the replay is too good: {100 * replayed:.1f} % where {100 * had.share:.1f} % was"


def _replayed(view: View, pool: Pool, replay: Replay, least: int) -> tuple[int, str]:
    """What the past needed, and why."""
    if view.judged:
        target, guess = view.promise.target, pool.memory.need or pool.replicas
        need = smallest_need(replay, target, max(1, least), pool.cap, guess)
        num_last, target_last = len(view.latest(LAST_S)), min(LAST_TARGET, target)
        last = replay.latest(num_last)
        if last.share(need.num_workers, target_last) < target_last:
            more = smallest_need(last, target_last, need.num_workers, pool.cap, guess)
            promise = _promise(view, pool, _span(min(LAST_S, view.judged_s)), num_last)
            return more.num_workers, sentence(more, pool.role, target_last, promise)
        promise = _promise(view, pool, _span(view.judged_s), len(view.judged), replay.growth)
        return need.num_workers, sentence(need, pool.role, target, promise)
    if _is_busy(view, pool):
        return max(least, pool.replicas), "nobody is known to have come, yet somebody is served"
    return least, f"nobody came in the last {_span(view.judged_s)}"


def _clearing(view: View, pool: Pool, line: Line) -> float:
    """Workers that the line of now asks for; 0: it needs none. A worker that drains comes back
    before another is ordered."""
    num_ready = sum(not is_full_of_sealed(worker) for worker in pool.serving)
    patience = Patience.of(view)
    needed = workers_to_clear(line, num_ready, pool.coming_s, patience)
    if needed and pool.victim and not pool.memory.is_going:
        more = workers_to_clear(line, num_ready + 1, pool.coming_s, patience)
        return max(pool.replicas, more)
    return needed


def _unknown(view: View, pool: Pool) -> Demand:
    least = _least(view, pool)
    num_workers = min(max(least, pool.replicas), pool.cap)
    return Demand(num_workers, pool.cap, f"no {pool.role} worker knows its costs", least=least)


def _least(view: View, pool: Pool) -> int:
    """Whoever comes has to be served by somebody."""
    somebody = bool(view.judged) or view.waiting.num_requests > 0
    return min(pool.cap, max(pool.view.least, int(somebody)))


def _is_busy(view: View, pool: Pool) -> bool:
    """What a worker that drains still does is no reason to keep it."""
    return view.waiting.num_requests > 0 or any(item.num_attempts for item in pool.serving)


def _span(last_s: float) -> str:
    return f"{last_s / 60:.0f} minutes" if last_s >= LONG_S else f"{last_s:.0f} s"


def _growth(view: View) -> float:
    """How many times as much comes now as in what is judged."""
    if not view.judged:
        return 1.0
    since_s = view.now_s - view.judged_s
    return growth([item.at_s for item in view.judged], since_s, view.now_s)


def _promise(view: View, pool: Pool, period: str, num_requests: int, grows: float = 1.0) -> str:
    """What a request in time was given."""
    rate = "" if 0.95 < grows < 1.05 else f", {grows:.1f} x as many,"
    wait, gap = f"waited at most {view.promise.wait_s:g} s", f"{1000 * view.promise.gap_s:g} ms"
    if view.is_aggregated:
        what, given = "requests", f"{wait} and had their tokens at most {gap} apart"
    elif pool.role == "prefill":
        what, given = "prompts", wait
    else:
        what, given = "answers", f"taken at most {gap} a token"
    return f"of the last {period}' {num_requests} {what}{rate} would have {given}"
