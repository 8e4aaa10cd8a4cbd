"""When the device is done with work that a hand-over has to wait for.

    prefill   a step writes a layer group of the blocks it completes  -> of_step, num_written
    decode    steps that may still write what a reserved attempt's blocks were before -> of_attempt

The step loop makes marks, others wait for them.
"""

from collections.abc import Callable, Sequence

from shared.engine.scheduling.step_marks import Mark, StepMarks
from shared.kv.layer_groups import GroupRange
from shared.kv.share import KVShare
from shared.protocol import Attempt


class Marks:
    """`of_step`, `num_written` and `of_attempt` may be called from any thread, the others by the
    step loop."""

    def __init__(
        self, layer_ends: Sequence[int], record: Callable[[], Mark], num_ranks: int = 1
    ) -> None:
        """`record`: a mark of the work that was started so far. `num_ranks`: that share the model.

        A layer's sum over the ranks needs all of them, so where rank 0 has begun the next layer,
        or ended its step, all ranks have written the layer before: with several, a group's mark is
        made one layer later, and those of rank 0 hold for every rank."""
        self._num_later = 1 if num_ranks > 1 else 0
        self._layer_ends = layer_ends
        self._record = record
        self._num_steps = 0
        self._steps: dict[int, StepMarks] = {}
        """that are not booked yet"""
        self._attempts: dict[Attempt, Mark] = {}

    def begin_step(self) -> StepMarks:
        """To be made while the next step is started."""
        self._num_steps += 1
        marks = StepMarks(self._num_steps, self._layer_ends, self._record, self._num_later)
        self._steps[marks.number] = marks
        return marks

    def end_step(self, step: int) -> None:
        """The device is done with it."""
        self._steps.pop(step, None)

    def of_step(self, step: int, group: int) -> Mark:
        """What the step writes of the layer groups up to this one. Waits until it is started."""
        marks = self._steps.get(step)
        return None if marks is None else marks.of_group(group)

    def num_written(self, step: int, groups: GroupRange) -> int:
        """The first of these layer groups of which the step has written all it will; does not
        wait."""
        marks = self._steps.get(step)
        return groups.num if marks is None else min(groups.num, marks.num_done(groups.first))

    def reserve(self, attempt: Attempt) -> None:
        """The attempt has its blocks, and nobody knows them yet; called before a step is started.

        A sequence that ended while the next step ran ahead gave its blocks back, and that step
        writes them still: the steps started so far must end before the blocks are filled. No later
        step names them until they are filled, so it need not wait for those.
        """
        self._attempts[attempt] = self._record()

    def of_attempt(self, attempt: Attempt) -> Mark:
        """What must have ended before a reserved attempt's blocks are filled."""
        return self._attempts.get(attempt)

    def forget(self, attempt: Attempt) -> None:
        """Its blocks are filled, or it has none any more."""
        self._attempts.pop(attempt, None)


def host_marks(share: KVShare) -> Marks:
    """Of a CPU, where work is done once it is started."""
    return Marks(share.groups.layer_ends, lambda: None, share.size)
