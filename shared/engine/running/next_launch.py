"""When the step loop had better call `Engine.step` where something may join the step, and what it
does until then."""

from collections.abc import Callable

from shared.engine.running.pipeline import StepPipeline


class NextLaunch:
    """Of one engine."""

    def __init__(self, pipeline: StepPipeline, any_near: Callable[[], bool]) -> None:
        """`any_near`: whether token 1 of some sequence, or the verdict on its KV, is near."""
        self._pipeline = pipeline
        self._any_near = any_near

    def due_s(self) -> float:
        """Seconds until the step had better be started: as the one in flight ends, and what has
        arrived by then joins it. 0: at once. Nobody has to be near where the one in flight computes
        prompts: it is long, so that somebody may well arrive."""
        awaits = self._any_near() or self._pipeline.computes_prompts
        return self._pipeline.due_s() if awaits else 0.0

    def exercise_due_s(self) -> float | None:
        """Seconds until `exercise` had better come, while nothing is in flight; None: it need
        not."""
        return self._pipeline.exercise_due_s() if self._any_near() else None

    def exercise(self) -> None:
        """The host does what it takes to start a step, so that the next one is not slow to start.
        Nothing is in flight."""
        self._pipeline.exercise()
