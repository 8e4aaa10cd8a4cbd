"""A refused client is told when to come back, and finds a place then.

Pure; the time is passed in. Refused clients get consecutive times, one for each request that is
expected to end, so that they do not all come back at once. A client that returns in time is known
by its prompt; until then its place in the waiting line is kept from those who come for the first
time. Without that, a Retry-After under steady overload is a number and no promise.

Clients that never return must not cost the others more than that: promises reach HORIZON_S ahead,
and beyond it a client is told the horizon and no place is kept. Once there is room, times start
from now again; whoever was told a later one is still known then.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from hashlib import blake2b

KEPT_S = 6.0
"""a place is kept this long after its time: Retry-After is whole seconds, and clients add jitter"""
HORIZON_S = 60.0
MAX_PROMISES = 4096
MAX_OF_ONE_PROMPT = 64
"""a client that hammers one request takes no more places than this from the others"""
_PROMPT_BYTES = 16


def prompt_key(tenant: str, token_ids: Sequence[int], block_hashes: Sequence[bytes] = ()) -> bytes:
    """Names a request so that it is known when it is sent again. The last block hash stands for all
    full blocks; less than a block follows them, and a block is no longer than their mean."""
    last_hash, tail = b"", token_ids
    if block_hashes:
        last_hash, tail = block_hashes[-1], token_ids[-(len(token_ids) // len(block_hashes)) :]
    text = f"{tenant}:{len(token_ids)}:{','.join(map(str, tail))}"
    return blake2b(last_hash + text.encode(), digest_size=_PROMPT_BYTES).digest()


class Promises:
    """Times at which refused clients were told to return."""

    def __init__(self) -> None:
        self._due: list[tuple[float, bytes]] = []
        """in order"""
        self._last_s = -math.inf
        """the time after which the next refused client is told to come"""

    def __len__(self) -> int:
        return len(self._due)

    def make(self, key: bytes, now_s: float, per_end_s: float) -> float:
        """Seconds after which a client with this prompt may come back. `per_end_s`: how often a
        request ends."""
        self._forget(now_s)
        due_s = max(self._last_s, now_s) + per_end_s
        if due_s > now_s + HORIZON_S:
            return HORIZON_S
        num_of_prompt = sum(other == key for _, other in self._due)
        if len(self._due) < MAX_PROMISES and num_of_prompt < MAX_OF_ONE_PROMPT:
            insort(self._due, (due_s, key))
            self._last_s = due_s
        return due_s - now_s

    def spread(self, now_s: float, per_end_s: float) -> float:
        """As `make`, for a client that no place is kept for: what it lacks is something else."""
        due_s = min(max(self._last_s, now_s) + per_end_s, now_s + HORIZON_S)
        self._last_s = max(self._last_s, due_s)
        return due_s - now_s

    def start_over(self) -> None:
        """There is room for whoever comes: nobody need wait for those who were told a time."""
        self._last_s = -math.inf

    def claim(self, key: bytes, now_s: float) -> bool:
        """Whether a client with this prompt was told to come now; its promise is kept then."""
        self._forget(now_s)
        for at, (due_s, promised) in enumerate(self._due):
            if due_s > now_s:
                return False
            if promised == key:
                del self._due[at]
                return True
        return False

    def num_kept(self, now_s: float) -> int:
        """Places kept for clients whose time has come."""
        self._forget(now_s)
        return sum(due_s <= now_s for due_s, _ in self._due)

    def _forget(self, now_s: float) -> None:
        del self._due[: bisect_left(self._due, (now_s - KEPT_S, b""))]
