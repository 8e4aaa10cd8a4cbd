"""Virtual time of one class of requests: what tenants were charged, and whose turn is next. Pure.

`shared.queue.backlog` has the formulas and their sources.
"""


class VirtualTime:
    """Tags in tokens by weight."""

    def __init__(self) -> None:
        self._now = 0
        """the start tag at the head of the queue when a request was last taken"""
        self._finish: dict[str, int] = {}
        """of each tenant's previous request"""
        self._owed: dict[str, int] = {}
        """what its next one is charged beyond its own, or less"""

    def start(self, tenant: str) -> int:
        """The tag that its next request gets."""
        return max(self._now, self._finish.get(tenant, 0))

    def add(self, tenant: str, charge: int) -> int:
        """One more request of it waits; its start tag. What was charged too much is given back by
        charging nothing, so that no request goes before its tenant's earlier ones."""
        start, due = self.start(tenant), charge + self._owed.pop(tenant, 0)
        if due < 0:
            self._owed[tenant] = due
        self._finish[tenant] = start + max(0, due)
        return start

    def restore(self, tenant: str, start: int, charge: int) -> int:
        """One that was charged waits again, at its start tag or, where that was forgotten, at an
        earlier one."""
        start = min(start, self.start(tenant))
        self._finish[tenant] = max(self._finish.get(tenant, 0), start + charge)
        return start

    def take(self, head: int) -> None:
        """A request was taken while this start tag was the first."""
        self._now = max(self._now, head)

    def settle(self, tenant: str, owed: int) -> None:
        """What it was served beyond its charge, or less."""
        self._owed[tenant] = self._owed.get(tenant, 0) + owed

    def forget(self) -> None:
        """Nobody waits: nobody is served at another's expense."""
        self._finish.clear()
        self._owed.clear()
