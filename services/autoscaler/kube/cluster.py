"""What the autoscaler needs of a cluster: the pods of a role, and how many replicas it has."""

from dataclasses import dataclass
from typing import Protocol

from services.autoscaler.view import PodView, Role
from shared.errors import BatonError


class ClusterUnavailableError(BatonError):
    """The API does not answer, fails, or refuses. The message has its words, and for a refusal the
    right that is missing."""


class ScaleConflictError(BatonError):
    """The scale is not the one that was read: nothing was ordered."""


@dataclass(frozen=True)
class Scale:
    """How many pods a role is to have, and the state of the cluster in which that was read."""

    replicas: int
    version: str
    """opaque; `order` wants it"""


class Cluster(Protocol):
    """Each call may block for seconds, and raises ClusterUnavailableError. Any thread may call."""

    def scale(self, role: Role) -> Scale:
        """What is ordered now."""

    def pods(self, role: Role) -> tuple[PodView, ...]:
        """The pods that serve the role or are to; none that ends or has ended."""

    def order(self, role: Role, replicas: int, version: str) -> None:
        """Orders replicas where the scale is still the one that was read with `version`.

        Raises ScaleConflictError if it is not. A new status of the role's pods makes another scale
        too, so a conflict alone does not say that somebody else ordered: read it again. After
        ClusterUnavailableError the order may have been taken all the same.
        """
