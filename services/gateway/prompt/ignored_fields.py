"""Fields of requests that nobody here knows: told to the client and counted."""

import re
from collections import Counter
from collections.abc import Sequence

from shared.fields.client_text import listed

HEADER = "x-baton-ignored"
MAX_NAMED = 16
"""in one header"""
MAX_COUNTED = 64
"""different names; clients invent them, so there must be an end"""
OTHERS = "others"

MAX_NAME_CHARS = 64

_ODD = re.compile(r"[^\w.$-]", re.ASCII)


def told(names: Sequence[str]) -> dict[str, str]:
    """The header that names them, fit for any proxy; none if there are none."""
    shown = [_ODD.sub("?", name[:MAX_NAME_CHARS]) for name in names]
    return {HEADER: listed(shown, MAX_NAMED)} if names else {}


class IgnoredFields:
    """How often which field was ignored."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, names: Sequence[str]) -> None:
        for name in names:
            plain = not _ODD.search(name) and len(name) <= MAX_NAME_CHARS
            new = name not in self.counts
            named = plain and (not new or len(self.counts) < MAX_COUNTED)
            self.counts[name if named else OTHERS] += 1
