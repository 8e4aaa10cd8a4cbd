"""Leases that may be renewed, found when they run out.

A heap orders the leases by the expiry each was pushed with. Renewing only moves the lease's
current expiry; when its heap entry comes up early, it goes back in at the current one. Every
entry's key is at most its lease's current expiry, so a renewed lease at the head cannot hide
an expired one behind it, and the heap holds one entry per lease however often they are renewed.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class LeaseHeap(Generic[Key]):
    """Expiry times in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._expiry_s: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._expiry_s)

    def __contains__(self, key: Key) -> bool:
        return key in self._expiry_s

    def start(self, key: Key, expiry_s: float) -> None:
        assert key not in self._expiry_s
        self._expiry_s[key] = expiry_s
        self._push(key)

    def renew(self, key: Key, expiry_s: float) -> None:
        """Move the expiry later; ignored for a lease that is gone or would get shorter."""
        if expiry_s > self._expiry_s.get(key, expiry_s):
            self._expiry_s[key] = expiry_s

    def stop(self, key: Key) -> None:
        """Forget the lease if it is there; its heap entry is dropped when it comes up."""
        self._expiry_s.pop(key, None)

    def pop_expired(self, now_s: float) -> list[Key]:
        """Remove and return every lease whose current expiry is at or before `now_s`."""
        expired: list[Key] = []
        while self._heap and self._heap[0][0] <= now_s:
            _, _, key = heapq.heappop(self._heap)
            expiry_s = self._expiry_s.get(key)
            if expiry_s is None:
                continue
            if expiry_s > now_s:
                self._push(key)
            else:
                del self._expiry_s[key]
                expired.append(key)
        return expired

    def _push(self, key: Key) -> None:
        self._num_pushed += 1
        heapq.heappush(self._heap, (self._expiry_s[key], self._num_pushed, key))
