"""Which gateway is which: the secret that each incarnation showed in its first HELLO here.

An incarnation is no secret: registry, logs and every worker know it. A peer that knows nothing else
must not get the tokens of its requests, nor cancel them.
"""

import hmac

from shared.errors import ProtocolError
from shared.protocol import Hello

MAX_SESSIONS = 1024
"""remembered incarnations; beyond that the oldest is forgotten"""


class Sessions:
    """Remembers them for the life of the worker, also while a gateway has no link."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    def admit(self, hello: Hello) -> None:
        """ProtocolError when this incarnation showed another secret before."""
        shown = hello.session.encode()
        first = self._secrets.setdefault(hello.incarnation, shown)
        if not hmac.compare_digest(first, shown):
            raise ProtocolError("a gateway of this incarnation has another session secret")
        if len(self._secrets) > MAX_SESSIONS:
            del self._secrets[next(iter(self._secrets))]
