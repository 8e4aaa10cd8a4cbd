"""What has gone wrong with one request since it last made progress (R9).

A strike is a death that ended an attempt: an incarnation that is lost or hangs, a hand-over that
broke, a worker that failed by itself. One death is one strike, whoever reports it: decode may miss
its source before the gateway sees prefill's link close, and the retry may go to a worker that is
dying already. So a strike names its suspects, and what a suspect does next is no second strike.
"""

from dataclasses import dataclass

from services.gateway.owner.machine.crashes import Crashes

FORGIVEN_AFTER = 64
"""new tokens since the last strike that make all of them fall away"""


@dataclass
class _Strike:
    suspects: set[str]
    """the incarnations of which one has died; empty if it still lives"""
    num_tokens: int
    """output tokens of the request when it was last heard of"""


class Strikes:
    """Counts up to `limit`; `num_tokens` is how many output tokens the request has."""

    def __init__(self, limit: int, forgiven_after: int = FORGIVEN_AFTER) -> None:
        self.num_failures = 0
        """attempts that ended badly, also those that are no strike"""
        self.crashes = Crashes(forgiven_after)
        self._limit = limit
        self._forgiven_after = forgiven_after
        self._strikes: list[_Strike] = []
        self._failed_at = 0

    def __len__(self) -> int:
        return len(self._strikes)

    @property
    def used_up(self) -> bool:
        return len(self) >= self._limit

    def note_death(self, incarnation: str, num_tokens: int) -> None:
        """`incarnation` is lost or hangs. If it is a suspect already, that was this death."""
        self._note_failure(num_tokens)
        for strike in self._strikes:
            if incarnation in strike.suspects:
                strike.suspects, strike.num_tokens = {incarnation}, num_tokens
                return
        self._strikes.append(_Strike({incarnation}, num_tokens))

    def note_broken_pair(
        self, prefill_incarnation: str, decode_incarnation: str, num_tokens: int
    ) -> None:
        """A hand-over between these two broke: one of them, or what is between them."""
        self._note_failure(num_tokens)
        pair = {prefill_incarnation, decode_incarnation}
        if not any(strike.suspects & pair for strike in self._strikes):
            self._strikes.append(_Strike(pair, num_tokens))

    def note_fault(self, num_tokens: int) -> None:
        """A worker that lives failed by itself. It may do so again, and that counts again."""
        self._note_failure(num_tokens)
        self._strikes.append(_Strike(set(), num_tokens))

    def note_crash(self, incarnation: str, num_tokens: int, *, alone: bool) -> None:
        """An engine died by itself while it computed this, `alone` or with others. That is no
        strike: another may be the cause, and if this one is, it is convicted sooner."""
        self.withdraw(incarnation)
        self._note_failure(num_tokens)
        self.crashes.note(incarnation, num_tokens, alone=alone)

    def withdraw(self, incarnation: str) -> None:
        """It did not die, or it is known of what."""
        self._strikes = [item for item in self._strikes if incarnation not in item.suspects]

    def note_progress(self, num_tokens: int) -> None:
        """All strikes fall away once enough tokens have come since the last one, and all failures
        once enough have come since the last of those."""
        if not self.num_failures:
            return
        self.crashes.note_progress(num_tokens)
        last = max((strike.num_tokens for strike in self._strikes), default=0)
        if num_tokens - last >= self._forgiven_after:
            self._strikes.clear()
        if num_tokens - self._failed_at >= self._forgiven_after:
            self.num_failures = 0

    def _note_failure(self, num_tokens: int) -> None:
        self.num_failures += 1
        self._failed_at = num_tokens
