"""Requests that workers die of: refused for a while, by this gateway and all others.

A request is known by its prompt and how its tokens are chosen, but the seed; nothing of either can
be read from that.
"""

import hashlib
from array import array
from dataclasses import replace

from services.gateway.owner.generation import GenerateRequest
from shared.clock import Clock
from shared.errors import RequestError
from shared.state.records import RequestRecords

LIFE_S = 600


class Convicts:
    """Of one model."""

    def __init__(self, model: str, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._until_s: dict[str, float] = {}
        self._unshared: set[str] = set()

    def note(self, request: GenerateRequest) -> None:
        """It was computed alone, and workers died of it."""
        fingerprint = self._fingerprint(request)
        self._until_s[fingerprint] = self._clock.monotonic_s() + LIFE_S
        self._unshared.add(fingerprint)

    def check(self, request: GenerateRequest) -> None:
        """RequestError for one that is refused."""
        if not self._until_s:
            return
        left_s = self._until_s.get(self._fingerprint(request), 0.0) - self._clock.monotonic_s()
        if left_s > 0:
            raise RequestError(
                "workers have died of this very request; it is refused for another "
                f"{left_s / 60:.0f} minutes",
                code="request_crashed_worker",
            )

    async def share(self, records: RequestRecords) -> None:
        """Tell other gateways, and hear of theirs; StateUnavailableError while Redis is away."""
        told = tuple(self._unshared)
        left_s = await records.convict(told, LIFE_S)
        now_s = self._clock.monotonic_s()
        self._unshared.difference_update(told)
        self._until_s |= {name: now_s + seconds_s for name, seconds_s in left_s.items()}
        self._until_s = {name: until for name, until in self._until_s.items() if until > now_s}

    def _fingerprint(self, request: GenerateRequest) -> str:
        sampling = repr(replace(request.sampling, seed=0))
        content = array("q", request.prompt_ids).tobytes() + sampling.encode()
        return hashlib.blake2b(content, digest_size=16, person=_person(self._model)).hexdigest()


def _person(model: str) -> bytes:
    return hashlib.blake2b(model.encode(), digest_size=16).digest()
