"""When a request last made progress, and how long it may take. Pure; the times are passed in."""

from services.gateway.owner.machine.effects import Failure
from services.gateway.owner.machine.time_limits import no_token, time_is_up

PATIENCE_S = 5.0
_PATIENCE_FACTOR = 20
_GAP_WEIGHT = 0.2


class Timing:
    """Of one request, in seconds of one monotonic clock."""

    def __init__(self, accepted_s: float, timeout_s: float, limit_s: float) -> None:
        """`timeout_s`: what is left of its HTTP request's `limit_s`."""
        self.progress_s = accepted_s
        self.last_token_s = accepted_s
        self.worst_gap_s = 0.0
        """between two tokens"""
        self._deadline_s = accepted_s + timeout_s
        self._limit_s = limit_s
        self._gap_s = 0.0
        self._token_is_due = True

    def overdue(self, now_s: float, token_timeout_s: float) -> Failure | None:
        """What it ends with if its time is up, or if no token came for too long: whether it
        waited in the line, on a worker, or between two attempts."""
        if now_s >= self._deadline_s:
            return time_is_up(self._limit_s)
        if self._token_is_due and now_s - self.last_token_s >= token_timeout_s:
            return no_token(token_timeout_s)
        return None

    def stalled(self, now_s: float, estimate_s: float) -> bool:
        """Whether it has made no progress for 20 times what the next event should take.
        `estimate_s`: to the first token."""
        patience_s = max(PATIENCE_S, _PATIENCE_FACTOR * max(estimate_s, self._gap_s))
        return now_s - self.progress_s > patience_s

    def note_progress(self, now_s: float) -> None:
        self.progress_s = now_s

    def note_pause(self, seconds_s: float) -> None:
        """The gateway itself stood still: nobody was late meanwhile."""
        self.progress_s += seconds_s
        self.last_token_s += seconds_s

    def note_tokens(self, now_s: float) -> None:
        gap_s = now_s - self.progress_s
        self._gap_s += _GAP_WEIGHT * (gap_s - self._gap_s)
        self.progress_s = self.last_token_s = now_s

    def suspend_token_limit(self) -> None:
        """It waits for the retry budget: that no token comes is nobody's fault."""
        self._token_is_due = False

    def restart_token_limit(self, now_s: float) -> None:
        self.last_token_s = now_s
        self._token_is_due = True
