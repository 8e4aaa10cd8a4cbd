"""Which requests may go ahead of which, of those that wait for a worker. Pure.

They go in order: by class, then by start tag. The first that finds no room holds up all behind it,
so that shorter ones do not take the room that it waits for. But a long prompt waits for a place
that short ones never take (`shared.queue.room`), so where it finds none it lets them pass:

    those of its tenant    always: their tags come after its charge
    those of other tenants up to its finish tag, as if it had gone at its turn

So what two tenants that wait are served differs by one longest request more than without passing.

No long prompt passes one of its class, nor does anything of a later class. So a long one has the
same ones before it as without passing, and gets the place that comes free once they have had
theirs, whatever passes: nobody starves. What may not pass waits for that place too, and holds up
all behind it.
"""

from typing import NamedTuple


class Turn(NamedTuple):
    """Of one request that waits. Tags as `shared.queue.backlog` has them."""

    priority: int
    """its class"""
    tenant: str
    start: int
    finish: int
    """its start tag and its charge"""
    is_long: bool
    """no worker has room for it that a short prompt could take"""

    def is_before(self, new: "Turn") -> bool:
        """Than one that comes now."""
        return (self.priority, self.start) <= (new.priority, new.start)

    def may_pass(self, other: "Turn") -> bool:
        """`other` comes first, and finds no room or place now."""
        if self.priority != other.priority:
            return self.priority < other.priority
        if self.is_long or not other.is_long:
            return False
        return self.tenant == other.tenant or self.start <= other.finish
