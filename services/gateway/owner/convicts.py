"""Requests that workers die of: refused for a while, by this gateway and all others.

A request is known by its prompt and how its tokens are chosen, but the seed; nothing of either can
be read from that.
"""

import hashlib
from array import array
from dataclasses import replace

from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.machine.crashes import ALONE_UNTIL_CONVICTED
from services.gateway.owner.machine.effects import CONVICTED_CODE
from shared.clock import Clock
from shared.errors import RequestError
from shared.state.keys import CONVICT_TTL_S
from shared.state.records import RequestRecords


class Convicts:
    """Of one model."""

    def __init__(self, model: str, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._until_s: dict[str, float] = {}
        self._unshared: set[str] = set()
        self._deaths: list[tuple[str, float]] = []

    def note_death(self, request: GenerateRequest) -> bool:
        """An engine died that computed it alone; whether that makes it a convict. Copies of a
        request are one."""
        fingerprint = self._fingerprint(request)
        now_s = self._clock.monotonic_s()
        self._deaths = [item for item in self._deaths if now_s - item[1] < CONVICT_TTL_S]
        self._deaths.append((fingerprint, now_s))
        return sum(name == fingerprint for name, _ in self._deaths) >= ALONE_UNTIL_CONVICTED

    def note(self, request: GenerateRequest) -> None:
        """It was computed alone, and workers died of it."""
        fingerprint = self._fingerprint(request)
        self._until_s[fingerprint] = self._clock.monotonic_s() + CONVICT_TTL_S
        self._unshared.add(fingerprint)

    def knows(self, request: GenerateRequest) -> bool:
        return self._left_s(request) > 0

    def check(self, request: GenerateRequest) -> None:
        """RequestError for one that is refused."""
        left_s = self._left_s(request)
        if left_s > 0:
            raise RequestError(
                "workers have died of this very request; it is refused for another "
                f"{left_s / 60:.0f} minutes",
                code=CONVICTED_CODE,
            )

    async def share(self, records: RequestRecords) -> bool:
        """Tell other gateways, and hear of theirs; whether there was anything new.
        StateUnavailableError while Redis is away."""
        told = tuple(self._unshared)
        left_s = await records.convict(told, CONVICT_TTL_S)
        now_s = self._clock.monotonic_s()
        self._unshared.difference_update(told)
        any_new = bool(left_s.keys() - self._until_s.keys())
        self._until_s |= {name: now_s + seconds_s for name, seconds_s in left_s.items()}
        self._until_s = {name: until for name, until in self._until_s.items() if until > now_s}
        return any_new

    def share_again(self) -> None:
        """Redis lost its data."""
        self._unshared |= self._until_s.keys()

    def _left_s(self, request: GenerateRequest) -> float:
        if not self._until_s:
            return 0.0
        return self._until_s.get(self._fingerprint(request), 0.0) - self._clock.monotonic_s()

    def _fingerprint(self, request: GenerateRequest) -> str:
        sampling = repr(replace(request.sampling, seed=0))
        content = array("q", request.prompt_ids).tobytes() + sampling.encode()
        return hashlib.blake2b(content, digest_size=16, person=_person(self._model)).hexdigest()


def _person(model: str) -> bytes:
    return hashlib.blake2b(model.encode(), digest_size=16).digest()
