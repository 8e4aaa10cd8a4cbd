"""When to launch a step that something may still join: just before the step in flight ends.

    step k      |-- launched ------------ runs ------------------|
    host                 waits for what may arrive        | launches k + 1 |

Launched at once, as where nobody is awaited, step k + 1 leaves out whatever arrives during step k.
Launched too late, the device waits for the host. So the launch is begun a slack before the time it
took lately; a launch that was late doubles the slack, and in time it shrinks again.

A host that has rested launches slowly: on an H200's, 1.0 ms after 20 ms, against 0.45 ms where it
did the same work without a step at most 2 ms before. So while a launch is near it does.
"""

from shared.clock import Clock

LEAST_SLACK_S, MOST_SLACK_S = 3e-4, 5e-3
EXERCISE_EVERY_S, EXERCISED_S = 0.002, 0.1
"""and for so long: what is near and does not come would cost a sixth of a core"""
EASE = 0.98
"""of the slack, and of a long launch, that the next launch leaves"""


class LaunchTime:
    """Called by the step loop, around launches and at the ends of steps."""

    def __init__(self, clock: Clock) -> None:
        self.slack_s = LEAST_SLACK_S
        self._clock = clock
        self._launch_s = 0.0
        """what a launch takes the host"""
        self._begun_s = 0.0
        self._starts_s = 0.0
        self._waited = False
        self._near_until_s = self._exercised_s = 0.0

    def begin(self, *, late: bool) -> None:
        """A step is put together. `late`: the device is done with the one before it."""
        self._begun_s = self._clock.monotonic_s()
        if self._waited:
            slack_s = 2 * self.slack_s if late else EASE * self.slack_s
            self.slack_s = min(max(slack_s, LEAST_SLACK_S), MOST_SLACK_S)
        self._waited = False

    def end(self) -> None:
        """It is launched."""
        self._starts_s = self._clock.monotonic_s()
        self._launch_s = max(self._starts_s - self._begun_s, EASE * self._launch_s)

    def follow(self) -> None:
        """The step before the last launch has ended: the device begins with the last one."""
        self._starts_s = self._clock.monotonic_s()

    def near(self) -> None:
        """Something to launch arrives soon."""
        self._near_until_s = self._clock.monotonic_s() + EXERCISED_S

    def exercise(self) -> None:
        """The host does what a launch takes, and launches nothing."""
        self._exercised_s = self._clock.monotonic_s()

    def exercise_due_s(self) -> float | None:
        """Seconds until `exercise` had better come; None where no launch is near."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._near_until_s:
            return None
        return max(0.0, max(self._begun_s, self._exercised_s) + EXERCISE_EVERY_S - now_s)

    def due_s(self, takes_s: float) -> float:
        """Seconds until the next launch had better begin; 0: at once. `takes_s`: the device for
        the last one."""
        ends_s = self._starts_s + takes_s
        left_s = ends_s - self._launch_s - self.slack_s - self._clock.monotonic_s()
        self._waited |= left_s > 0
        return max(0.0, left_s)
