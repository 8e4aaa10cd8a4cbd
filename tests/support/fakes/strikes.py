"""Where a mover's thread meets the faults that were planned on the event loop."""

import asyncio

from tests.support.fakes.faulty_transport import Fault, FaultyTerms


class Strikes:
    """Made on the running loop; the mover's thread waits for it."""

    def __init__(self, ours: FaultyTerms, source: FaultyTerms) -> None:
        """`ours`: whose plan strikes at `read`; `source`: whose plan strikes at `blocks` and
        `half_read`."""
        self._ours = ours
        self._source = source
        self._loop = asyncio.get_running_loop()

    def read(self) -> Fault:
        """What the source does to it."""
        self._strike(self._ours, "read")
        return self._strike(self._source, "blocks")

    def half_read(self) -> None:
        self._strike(self._source, "half_read")

    def _strike(self, terms: FaultyTerms, point: str) -> Fault:
        return asyncio.run_coroutine_threadsafe(terms.strike(point), self._loop).result()
