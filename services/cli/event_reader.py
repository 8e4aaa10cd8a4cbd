"""Server-sent events of an OpenAI-compatible endpoint, read from bytes."""

DONE = b"[DONE]"
"""what the last event of a whole answer holds"""
_FIELD = b"data:"


class EventReader:
    """Bytes in, events out; the bytes may be cut anywhere.

    A line ends an event: no endpoint spreads its JSON over several lines, and some send no empty
    line between events. Comments and fields other than `data` are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[bytes]:
        """What each event that is now complete holds, without surrounding spaces."""
        lines = (self._rest + received).split(b"\n") if self._rest else received.split(b"\n")
        self._rest = lines.pop()
        return [line[len(_FIELD) :].strip() for line in lines if line.startswith(_FIELD)]
