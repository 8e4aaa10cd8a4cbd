"""Ctrl-C that waits, so that what an engine does is not cut in the middle."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """A SIGINT that arrives within is delivered at the end, to whoever would have got it. Only the
    main thread gets signals, so nothing is done in another."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []
    before = signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
        if came and callable(before):
            before(signal.SIGINT, came[0])
        elif came and before is signal.SIG_DFL:
            signal.raise_signal(signal.SIGINT)
