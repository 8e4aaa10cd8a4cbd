"""What befell the attempts of one request: the oracle of its strikes."""

from collections.abc import Iterator
from contextlib import contextmanager

FORGIVEN_AFTER = 2
"""new tokens"""


class Deaths:
    """What really befell the attempts since the request last made progress: I10's two bounds."""

    def __init__(self) -> None:
        self.num_possible = 0
        """every one of them: there are no more strikes than these"""
        self.num_certain = 0
        """those that nothing explains but a death of its own: that many strikes there are"""
        self._known: set[str] = set()
        self._counted: set[str] = set()
        """those that `num_possible` has"""
        self._possible_at = self._certain_at = 0

    def note(self, *incs: str, num_tokens: int, certain: bool = False) -> None:
        """One of these died or may have; what is known of one already is no other death."""
        if certain and incs[0] not in self._known:
            self.num_certain += 1
            self._certain_at = num_tokens
        self.num_possible += 1
        self._possible_at = num_tokens
        self._known.update(incs)
        self._counted.update(incs)

    def note_again(self, incarnation: str, num_tokens: int) -> None:
        """One death was heard of once more: it is no other, unless the first was forgiven."""
        if incarnation not in self._counted:
            self.num_possible += 1
            self._counted.add(incarnation)
        self._possible_at = num_tokens

    @contextmanager
    def one_more(self, num_tokens: int) -> Iterator[None]:
        """Something looks like a death meanwhile, and turns out to be none."""
        possible_at = self._possible_at
        self.num_possible, self._possible_at = self.num_possible + 1, num_tokens
        yield
        self.num_possible, self._possible_at = self.num_possible - 1, possible_at

    def note_progress(self, num_tokens: int) -> None:
        if num_tokens - self._possible_at >= FORGIVEN_AFTER:
            self.num_possible = 0
            self._counted.clear()
        if num_tokens - self._certain_at >= FORGIVEN_AFTER:
            self.num_certain = 0
