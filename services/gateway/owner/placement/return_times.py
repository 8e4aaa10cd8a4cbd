"""When a refused client may come back: promises, at the pace at which requests end here."""

from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.placement.promises import Promises, prompt_key
from shared.clock import Clock
from shared.queue.throughput import Throughput


class ReturnTimes:
    """Of all refused clients of this gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._promises = Promises()
        self._throughput = Throughput()

    def promise(self, request: GenerateRequest) -> float:
        """Seconds until this refused client may come back and finds a place."""
        now_s = self._clock.monotonic_s()
        return self._promises.make(_key(request), now_s, self.per_end_s())

    def hint(self) -> float:
        """Seconds until a client had better come back that was refused for lack of something else
        than a place: none is kept for it."""
        return self._promises.spread(self._clock.monotonic_s(), self.per_end_s())

    def claim(self, request: GenerateRequest) -> bool:
        """Whether this client was refused before and told to come now."""
        known = len(self._promises) > 0
        return known and self._promises.claim(_key(request), self._clock.monotonic_s())

    def num_due(self) -> int:
        """Clients whose time has come."""
        return self._promises.num_kept(self._clock.monotonic_s())

    def start_over(self) -> None:
        """There is room for whoever comes."""
        self._promises.start_over()

    def per_end_s(self) -> float:
        """Seconds from one request's end to the next."""
        return self._throughput.per_end_s(self._clock.monotonic_s())

    def note_accepted(self) -> None:
        self._throughput.note_work(self._clock.monotonic_s())

    def note_end(self, *, idle: bool) -> None:
        """A request ended; `idle`: it was the last one."""
        self._throughput.note_end(self._clock.monotonic_s(), idle=idle)


def _key(request: GenerateRequest) -> bytes:
    return prompt_key(request.tenant, request.prompt_ids, request.block_hashes or ())
