"""When a retry may start: at once, then later and later, so that a flapping worker is not
tried again while it is still down. Pure."""

import random

DELAYS_S = (0.0, 0.05, 0.2)
"""after the first, the second and any later failure without progress in between"""


def retry_delay_s(num_failures: int, rng: random.Random) -> float:
    """Half to one and a half of the step: requests that failed together do not return together."""
    step_s = DELAYS_S[min(num_failures, len(DELAYS_S)) - 1] if num_failures else 0.0
    return step_s * (0.5 + rng.random())
