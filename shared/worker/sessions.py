"""Which gateway is which: the secret that each incarnation showed in its first HELLO here, and the
last of its dials that came.

An incarnation is no secret: registry, logs and every worker know it. A peer that knows nothing else
must not get the tokens of its requests, nor cancel them. And a HELLO that the network delivers
after that of a later dial must not cost the gateway the link that it has.
"""

import hmac
from typing import NamedTuple

from shared.errors import ProtocolError
from shared.protocol import Hello

MAX_SESSIONS = 1024
"""remembered incarnations; beyond that the oldest is forgotten"""


class _Session(NamedTuple):
    secret: bytes
    dial: int


class Sessions:
    """Remembers them for the life of the worker, also while a gateway has no link."""

    def __init__(self) -> None:
        self._known: dict[str, _Session] = {}

    def admit(self, hello: Hello) -> None:
        """ProtocolError when this incarnation showed another secret before, or dialled again since
        this was sent."""
        shown = _Session(hello.session.encode(), hello.dial)
        known = self._known.get(hello.incarnation, shown)
        if not hmac.compare_digest(known.secret, shown.secret):
            raise ProtocolError("a gateway of this incarnation has another session secret")
        if shown.dial < known.dial:
            raise ProtocolError("this gateway has dialled again since")
        self._known[hello.incarnation] = shown
        if len(self._known) > MAX_SESSIONS:
            del self._known[next(iter(self._known))]
