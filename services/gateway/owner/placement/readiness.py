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

    def now(self, *, served: bool, elsewhere: bool) -> bool:
        """`served`: workers would serve a request here; `elsewhere`: they may at another one."""
        self._has_served |= served
        return served or (self._has_served and not elsewhere)
