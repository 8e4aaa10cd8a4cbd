"""What follows for live requests when one of them kills engines."""

from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.machine.effects import CONVICTED_CODE, Failure
from services.gateway.owner.requests import Requests


class Convictions:
    """Of one gateway's requests."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def note_death(self, live: LiveRequest) -> None:
        """An engine died that computed nothing but this."""
        convicts = self._requests.convicts
        if convicts.note_death(live.request):
            convicts.note(live.request)
            self.end_copies()

    def end_copies(self) -> None:
        """Of all that is refused, whoever found it out."""
        for live in self._requests.all():
            if live.machine.active and self._requests.convicts.knows(live.request):
                failure = Failure(CONVICTED_CODE, "workers die of it")
                with self._requests.isolated(live):
                    self._requests.execute(live, live.machine.abandon(failure))
