"""When to launch a step that something may still join: just before the step in flight ends.

    step k      |-- launched ------------ runs ------------------|
    host                 waits for what may arrive        | launches k + 1 |

Launched at once, as where nobody is awaited, step k + 1 leaves out whatever arrives during step k.
Launched too late, the device waits for the host. So the launch is begun by its lead and a slack
before the end. The lead is what the host takes to the first work that the device gets of the step;
what it takes for the rest counts where it is longer than the device's work. A launch that was late
doubles the slack, and in time it shrinks again.

A host that has rested launches slowly: on an H200's, 1.0 ms after 20 ms, against 0.45 ms where it
did the same work without a step at most 2 ms before. So while a launch is near it does.
"""

from collections import deque

from shared.clock import Clock

LEAST_SLACK_S, MOST_SLACK_S = 3e-4, 5e-3
EXERCISE_EVERY_S, EXERCISED_S = 0.002, 0.1
"""and for so long: what is near and does not come would cost a sixth of a core"""
EASE = 0.98
"""of the slack that the next launch leaves"""
NUM_LEADS = 16
"""that are remembered"""
LEAD_SHARE = 0.75
"""of them are shorter than the one that is counted on: the longest come of accidents, and of small
steps next to large ones"""


class LaunchTime:
    """Called by the step loop, around launches and at the ends of steps."""

    def __init__(self, clock: Clock) -> None:
        self.slack_s = LEAST_SLACK_S
        self._clock = clock
        self._leads_s = deque((0.0,), NUM_LEADS)
        self._lead_s = 0.0
        self._begun_s = self._reached_s = 0.0
        self._starts_s = self._before_starts_s = 0.0
        """when the device begins with the step that was launched last, and with the one before"""
        self._waited = False
        self._near_until_s = self._exercised_s = 0.0

    def begin(self) -> None:
        """A step is decided, put together and launched from now on."""
        self._begun_s = self._clock.monotonic_s()

    def reach(self, *, late: bool) -> None:
        """The device gets its first work. `late`: it is done with the step before."""
        self._before_starts_s = self._starts_s
        self._reached_s = self._starts_s = self._clock.monotonic_s()
        if self._waited:
            slack_s = 2 * self.slack_s if late else EASE * self.slack_s
            self.slack_s = min(max(slack_s, LEAST_SLACK_S), MOST_SLACK_S)
        self._waited = False

    def end(self, takes_s: float = 0.0) -> None:
        """It has all of it. `takes_s`: the device for it, where that began before the end."""
        first_s = self._reached_s - self._begun_s
        all_s = self._clock.monotonic_s() - self._begun_s
        self._leads_s.append(max(first_s, all_s - takes_s))
        self._lead_s = sorted(self._leads_s)[int(LEAD_SHARE * (len(self._leads_s) - 1))]

    def follow(self, took_s: float | None) -> None:
        """The step before the last launch has ended: the device begins with the last one. `took_s`:
        the device for the one that ended, where it ended before anybody waited for it."""
        ended_s = self._clock.monotonic_s()
        if took_s is not None:
            ended_s = min(ended_s, self._before_starts_s + took_s)
        self._starts_s = max(self._reached_s, ended_s)

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
        left_s = ends_s - self._lead_s - self.slack_s - self._clock.monotonic_s()
        self._waited |= left_s > 0
        return max(0.0, left_s)
