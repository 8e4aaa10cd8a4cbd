"""Finds where a JSON object ends in text that arrives in pieces."""

_CLOSERS = {"{": "}", "[": "]"}
_PLAIN = frozenset("0123456789+-.eE,: \t\r\ntrufalsn")
"""what may stand outside strings and brackets: numbers, true, false, null, separators"""


class JsonScan:
    """Follows brackets and strings, one character at a time. It does not check all of JSON's
    grammar: an object it finds the end of may still be none."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._escaped = False
        self.in_string = False
        self.broken = False
        """the last character cannot stand where it stood"""

    @property
    def depth(self) -> int:
        """Brackets that are open."""
        return len(self._closers)

    def push(self, char: str) -> None:
        """One more character; the first must open an object, the last closes it."""
        if self.in_string:
            self._in_string(char)
        elif char == '"' and self._closers:
            self.in_string = True
        elif char == "{" or (char == "[" and self._closers):
            self._closers.append(_CLOSERS[char])
        elif self._closers and char == self._closers[-1]:
            self._closers.pop()
        elif char not in _PLAIN or not self._closers:
            self.broken = True

    def take(self, text: str, depth: int) -> int:
        """Reads until no more than `depth` brackets are open; the number of characters read.
        A broken one is not read."""
        for at, char in enumerate(text):
            self.push(char)
            if self.broken:
                return at
            if self.depth <= depth:
                return at + 1
        return len(text)

    def _in_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self.in_string = False
