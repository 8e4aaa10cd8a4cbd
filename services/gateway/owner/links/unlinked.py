"""Registered workers that this gateway has no link to, and why."""

from collections import defaultdict
from collections.abc import Collection, Sequence

from shared.challenge import ChallengeError, OtherSecretError
from shared.errors import BatonError, OtherPeerError, PeerLostError
from shared.state.registry import WorkerEntry

MAX_NAMED = 8
"""workers that are named for one reason"""


class Unlinked:
    """The last failed dial of each entry."""

    def __init__(self) -> None:
        self._errors: dict[WorkerEntry, BatonError] = {}

    def note(self, entry: WorkerEntry, error: BatonError) -> None:
        self._errors[entry] = error

    def forget(self, entry: WorkerEntry) -> None:
        """It is linked."""
        self._errors.pop(entry, None)

    def keep(self, entries: Collection[WorkerEntry]) -> None:
        """Forget workers that are no longer listed."""
        listed = set(entries)
        self._errors = {entry: error for entry, error in self._errors.items() if entry in listed}

    def is_stranger(self, entry: WorkerEntry) -> bool:
        """Somebody else or another cell answers there: to dial again changes nothing."""
        return isinstance(self._errors.get(entry), OtherPeerError | ChallengeError)

    def text(self) -> str:
        """The workers that are not linked and what to do; empty when every dial succeeded."""
        names: dict[str, list[str]] = defaultdict(list)
        for entry, error in self._errors.items():
            names[_reason(entry, error)].append(entry.worker_id)
        return "; ".join(
            f"{_counted(sorted(each))}: {reason}" for reason, each in sorted(names.items())
        )


def _reason(entry: WorkerEntry, error: BatonError) -> str:
    if isinstance(error, OtherSecretError):
        return "another BATON_CELL_SECRET, give all processes the same one"
    if isinstance(error, PeerLostError):
        return f"nobody answers at {entry.host}:{entry.port}"
    return str(error)


def named(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")


def _counted(names: list[str]) -> str:
    workers = (
        "1 registered worker is" if len(names) == 1 else f"{len(names)} registered workers are"
    )
    return f"{workers} not linked ({named(names)})"
