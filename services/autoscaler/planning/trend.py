"""How much more comes at the end of a window than in all of it.

    arrivals                     ____----|
    a second     ____------''''''        |     a straight line through them,
             ----                  ^           read here, divided by the mean
             0                    3/4     1

Pure.
"""

from collections.abc import Sequence

READ_AT = 3 / 4
"""of the window: at its end the line is half as uncertain again"""
LEAST, MOST = 0.75, 1.3
"""A load that swings faster than the window is long looks like any slope. What ends too early costs
more than what ends late, and workers that a rise needs can be ordered when it goes on."""


def growth(at_s: Sequence[float], since_s: float, until_s: float) -> float:
    """1: as many as ever. `at_s`: the arrivals of the window from `since_s` to `until_s`.

    The slope of the least-squares line through a density is 12 times the mean's distance from the
    middle, in windows and per mean density.
    """
    length_s = until_s - since_s
    if not at_s or length_s <= 0:
        return 1.0
    lean = (sum(at_s) / len(at_s) - since_s) / length_s - 0.5
    return min(MOST, max(LEAST, 1 + 12 * lean * (READ_AT - 0.5)))
