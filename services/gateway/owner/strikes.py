"""What has gone wrong with one request since it last made progress (R9).

A strike is a death that ended an attempt: an incarnation that is lost or hangs, a hand-over that
broke, a worker that failed by itself. One death is one strike, whoever reports it: decode may miss
its source before the gateway sees prefill's link close, and the retry may go to a worker that is
dying already. So a strike names its suspects, and what a suspect does next is no second strike.
"""

FORGIVEN_AFTER = 64
"""new tokens since the last strike that make all of them fall away"""


class Strikes:
    """Counts up to `limit`; `num_tokens` is how many output tokens the request has."""

    def __init__(self, limit: int, forgiven_after: int = FORGIVEN_AFTER) -> None:
        self.num_failures = 0
        """attempts that ended badly since the strikes fell away, also those that are no strike"""
        self._limit = limit
        self._forgiven_after = forgiven_after
        self._suspects: list[set[str]] = []
        """one entry a strike: the incarnations of which one has died; empty if it still lives"""
        self._last_at = 0

    def __len__(self) -> int:
        return len(self._suspects)

    @property
    def used_up(self) -> bool:
        return len(self) >= self._limit

    def note_death(self, inc: str, num_tokens: int) -> None:
        """`inc` is lost or hangs. If it is a suspect already, that was this death."""
        self.num_failures += 1
        for suspects in self._suspects:
            if inc in suspects:
                suspects.intersection_update({inc})
                return
        self._add({inc}, num_tokens)

    def note_broken_pair(self, p_inc: str, d_inc: str, num_tokens: int) -> None:
        """A hand-over between these two broke: one of them, or what is between them."""
        self.num_failures += 1
        pair = {p_inc, d_inc}
        if not any(suspects & pair for suspects in self._suspects):
            self._add(pair, num_tokens)

    def note_fault(self, num_tokens: int) -> None:
        """A worker that lives failed by itself. It may do so again, and that counts again."""
        self.num_failures += 1
        self._add(set(), num_tokens)

    def withdraw(self, inc: str) -> None:
        """A link to it is back: it was cut off or frozen, not dead."""
        self._suspects = [suspects for suspects in self._suspects if inc not in suspects]

    def note_progress(self, num_tokens: int) -> None:
        """All strikes fall away once enough tokens have come since the last one."""
        if self.num_failures and num_tokens - self._last_at >= self._forgiven_after:
            self._suspects.clear()
            self.num_failures = 0

    def _add(self, suspects: set[str], num_tokens: int) -> None:
        self._suspects.append(suspects)
        self._last_at = num_tokens
