"""Token 1 of attempts whose KV is here, seen where prefill's engine writes it.

    mover       map, expect, give_up   what the io process says
    step loop   arrived                between its steps, and while it waits for something to do

That saves the way through three processes by which token 1 comes besides, with the verdict on the
KV. Until then nothing that is computed from it leaves the engine.
"""

import threading
import time
from collections.abc import Callable

from shared.kv.peer_memory import PeerFirstTokens
from shared.mover.copies import CopyError
from shared.protocol import Attempt

PATIENCE_S = 0.005
"""looked for so long: what is left of prefill's step then takes an H200 up to 3 ms of a prompt of
32k tokens. Looking costs a core, and what it saves, a millisecond, is little after a longer one"""
MAX_PASSED = 1024
"""attempts that were passed over and are remembered; to forget one costs a pull at most"""


class FirstTokens:
    """Of all sources that are watched. Called from any thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake`: lets the step loop look here."""
        self._wake = wake
        self._lock = threading.Lock()
        self._sources: dict[str, PeerFirstTokens] = {}
        self._expected: dict[Attempt, tuple[str, int, int, float]] = {}
        """source, block, generation, and when to give up"""
        self._passed: dict[Attempt, None] = {}
        """that the step loop has not begun with, and will not"""

    def map(self, source: str, num_blocks: int, fd: int) -> None:
        """Takes `fd` over. CopyError if it has none of `num_blocks` blocks."""
        self.unmap(source)
        try:
            found = PeerFirstTokens(num_blocks, fd)
        except (OSError, ValueError) as error:
            raise CopyError(f"the source's first tokens cannot be mapped: {error}") from None
        with self._lock:
            self._sources[source] = found

    def unmap(self, source: str) -> None:
        """Nothing happens if it is not mapped."""
        with self._lock:
            found = self._sources.pop(source, None)
            if found is None:
                return
            found.close()
            for attempt, (owner, *_) in list(self._expected.items()):
                if owner == source:
                    self._pass_over(attempt)

    def expect(self, attempt: Attempt, source: str, block: int, generation: int) -> None:
        """Token 1 of this attempt will be there. CopyError if the source has no such block, or is
        not watched."""
        with self._lock:
            found = self._sources.get(source)
            if found is None or not 0 <= block < found.num_blocks:
                raise CopyError("the source shows no token 1 there")
            give_up_s = time.monotonic() + PATIENCE_S
            self._expected[attempt] = source, block, generation, give_up_s
            self._passed.pop(attempt, None)
        self._wake()

    def give_up(self, attempt: Attempt) -> None:
        """Do not look any more. CopyError if the step loop may have begun."""
        with self._lock:
            if attempt in self._expected:
                self._pass_over(attempt)
            if attempt not in self._passed:
                raise CopyError("the engine has begun from token 1")

    @property
    def any_expected(self) -> bool:
        """There is something to look for."""
        return bool(self._expected)

    def arrived(self) -> list[tuple[Attempt, int]]:
        """Attempts whose token 1 is there now; none comes twice. The caller begins with them, or
        says that it does not."""
        if not self._expected:
            return []
        arrived, now_s = [], time.monotonic()
        with self._lock:
            for attempt, (source, block, generation, give_up_s) in list(self._expected.items()):
                token_id = self._sources[source].of(block, generation)
                if token_id is not None:
                    arrived.append((attempt, token_id))
                    del self._expected[attempt]
                elif now_s > give_up_s:
                    self._pass_over(attempt)
        return arrived

    def decline(self, attempt: Attempt) -> None:
        """The step loop does not begin with this one, which has arrived."""
        with self._lock:
            self._pass_over(attempt)

    def close(self) -> None:
        for source in list(self._sources):
            self.unmap(source)

    def _pass_over(self, attempt: Attempt) -> None:
        self._expected.pop(attempt, None)
        self._passed[attempt] = None
        if len(self._passed) > MAX_PASSED:
            del self._passed[next(iter(self._passed))]
