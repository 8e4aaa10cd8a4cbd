"""What the autoscaler may ask of Kubernetes: all of it, and nothing that it never asks.

The chart's Role grants exactly this. Kubernetes knows no name yet when something is created or
listed, so such a right cannot be limited to names.
"""

from dataclasses import dataclass
from typing import Literal

Names = Literal["workers", "lease", "any"]
"""the objects of a right: the Deployments of its roles, the one lease, or all of the namespace"""


@dataclass(frozen=True)
class Right:
    """One rule of a Role, in one namespace."""

    api_group: str
    """empty: the core group"""
    resource: str
    names: Names
    verbs: tuple[str, ...]


SCALES = Right("apps", "deployments/scale", "workers", ("get", "update"))
PODS = Right("", "pods", "any", ("list",))
LEASE = Right("coordination.k8s.io", "leases", "lease", ("get", "update"))
NEW_LEASE = Right("coordination.k8s.io", "leases", "any", ("create",))

RIGHTS = (SCALES, PODS, LEASE, NEW_LEASE)


@dataclass(frozen=True)
class Use:
    """One call that needs a right."""

    right: Right
    verb: str
    name: str = ""
    """of the object; empty: a list"""

    def __post_init__(self) -> None:
        assert self.verb in self.right.verbs, f"no right to {self.verb} {self.right.resource}"

    def __str__(self) -> str:
        return f"{self.verb} {self.right.resource} {self.name}".rstrip()

    @property
    def missing(self) -> str:
        """What a Role that refuses this lacks, in a Role's own words."""
        group, resource = self.right.api_group, self.right.resource
        named = f', resourceNames ["{self.name}"]' if self.right.names != "any" else ""
        return f'apiGroups ["{group}"], resources ["{resource}"], verbs ["{self.verb}"]{named}'
