"""How much longer than fitted steps take just now.

A device's clocks follow its heat and its power within seconds: a GPU at its power limit runs equal
steps 10 % slower than after a pause. What a step costs is learned from hundreds of them, so the
pace of the last few is kept apart from it.
"""

GAIN = 0.2
"""of a step's surprise that is believed at once"""
MAX_SURPRISE = 0.1
"""relative; what is beyond was something else than the clocks"""


class Pace:
    """Multiplies what was fitted."""

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, fitted_s: float, measured_s: float) -> None:
        """Of one step. Both are positive."""
        surprise = measured_s / (fitted_s * self.factor) - 1
        self.factor *= 1 + GAIN * max(-MAX_SURPRISE, min(MAX_SURPRISE, surprise))
