"""What the autoscaler last decided for our pool, as Redis tells it."""

from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.view.live_view import LiveView
from shared.errors import StateUnavailableError
from shared.loops import Loops
from shared.state.notes.scaling import ScalingNotes

LOOK_S = 5.0


class ScalingFeed:
    """`start` once, `close` once."""

    def __init__(self, notes: ScalingNotes, served: ServedPool, view: LiveView) -> None:
        self._notes = notes
        self._served = served
        self._view = view
        self.loops = Loops()

    def start(self) -> None:
        self.loops.start("scaling", self.look, LOOK_S)

    async def close(self) -> None:
        await self.loops.close()

    async def look(self) -> None:
        """StateUnavailableError: then nothing is known. Until the answer what was known is."""
        pool = self._served.name
        try:
            self._view.scaling = await self._notes.of(pool) if pool else None
        except StateUnavailableError:
            self._view.scaling = None
            raise
