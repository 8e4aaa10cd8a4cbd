"""Whether clients should come to this gateway.

A Service whose gateways are all unready refuses connections; a gateway without workers answers 503
and says when to come again. So a gateway that has served is unready only where another one may do
better.
"""


class Readiness:
    """Of one gateway since its start."""

    def __init__(self) -> None:
        self._has_served = False
        """workers were there once that would have"""

    def note(self, *, serves: bool) -> None:
        """Whether workers would serve a request now."""
        self._has_served |= serves

    def now(self, *, serves: bool, elsewhere: bool) -> bool:
        """`elsewhere`: workers may serve it at another gateway."""
        self.note(serves=serves)
        return serves or (self._has_served and not elsewhere)
