"""An error of ours ends the request it is about; the others go on."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.gateway.owner.live_request import LiveRequest
from shared.clock import Clock
from shared.repeats import Repeats

logger = logging.getLogger(__name__)


class Isolation:
    """`with isolated(live): ...` around what is done for one request among many."""

    def __init__(self, end: Callable[[LiveRequest], None], clock: Clock) -> None:
        """`end(live)` is called after an exception and must not raise."""
        self._end = end
        self._repeats = Repeats(clock.monotonic_s)

    @contextmanager
    def __call__(self, live: LiveRequest) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if count := self._repeats.due(type(error).__name__):
                logger.error("request %s ends, time %d", live.rid, count, exc_info=error)
            self._end(live)
