"""Stop strings, found in text as it grows.

Text that may be the beginning of a stop string is held back, never more than one character
less than the longest one, so a client never sees a part of a stop string.
"""


class StopStrings:
    """Watches one output for up to four strings."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        self._longest = max(map(len, stops), default=1) - 1
        self._last_chars = {beginning[-1] for beginning in self._beginnings}
        self.held = ""
        self.found = ""
        """the stop string that ended the text"""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string ended it."""
        if not text:
            return "", False
        text = self.held + text
        places = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if places:
            self.held = ""
            at, self.found = min(places)
            return text[:at], True
        size = self._num_held(text)
        self.held = text[len(text) - size :]
        return text[: len(text) - size], False

    def end(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self.held = self.held, ""
        return held

    def _num_held(self, text: str) -> int:
        if text[-1] not in self._last_chars:
            return 0
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._beginnings:
                return size
        return 0
