"""A child of `shared.child` for tests: its first answer is its setup, then it says what it is told,
hangs, or ends."""

import signal
from dataclasses import dataclass

from shared.child.asker import Asker
from shared.codec import Codec


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Hang:
    pass


ECHO_CODEC = Codec((Say, Hang))

if __name__ == "__main__":
    asker = Asker.parent(ECHO_CODEC)
    while isinstance(message := asker.next(), Say):
        asker.answer(message)
    if message is not None:
        signal.pause()
