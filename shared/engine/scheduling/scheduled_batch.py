"""What the scheduler has decided about one step."""

from dataclasses import dataclass, field

from shared.engine.scheduling.batch import BlockCopy, ScheduledSequence
from shared.engine.scheduling.sequence import Sequence


@dataclass(slots=True)
class ScheduledBatch:
    """The decisions of one step."""

    budget: int
    """tokens this step may still take"""
    num_spare_blocks: int = 0
    """that whoever runs will want to grow by"""
    items: list[ScheduledSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    """admitted for the first time, to be computed here"""
    reserved: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    handed_back: list[Sequence] = field(default_factory=list)
    scores: bool = False
    """log-probabilities of some prompt's tokens are wanted"""
    alone: Sequence | None = None
    """the only one that is computed, as it is to be"""

    @property
    def changes_next(self) -> bool:
        """Another step may find more to do than this one did."""
        return bool(self.items or self.preempted or self.handed_back)
