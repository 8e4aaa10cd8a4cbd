"""The parts of a block that are handed over by themselves: groups of layers, from the first on.

A group is handed over as soon as its layers are written, while later ones are computed. A copy
reaches the link's speed with pieces of MIN_PIECE_BYTES and more. The last group is as small as can
be, for nothing is left to hide its copy.
"""

from functools import cache
from typing import NamedTuple

from shared.kv.layout import KVLayout

MIN_PIECE_BYTES = 256 * 2**10
MAX_GROUPS = 8
LAST_LAYERS = 2


class GroupRange(NamedTuple):
    """Consecutive layer groups."""

    first: int
    num: int

    @property
    def end(self) -> int:
        return self.first + self.num


class LayerGroups:
    """How the blocks of one layout are divided."""

    def __init__(self, layer_ends: tuple[int, ...], layer_bytes: int) -> None:
        """`layer_ends`: the layer after the last one of each group."""
        self.layer_ends = layer_ends
        self._byte_ends = (0, *(end * layer_bytes for end in layer_ends))

    def __len__(self) -> int:
        return len(self.layer_ends)

    @property
    def all(self) -> GroupRange:
        """A whole block."""
        return GroupRange(0, len(self))

    def span(self, groups: GroupRange) -> slice:
        """Which bytes of a block they are."""
        return slice(self._byte_ends[groups.first], self._byte_ends[groups.end])

    def bounds(self, unit: int) -> tuple[int, ...]:
        """Where in a block each group begins and the last one ends, in units of that many bytes.
        ValueError if a group does not begin at a whole one."""
        if any(end % unit for end in self._byte_ends):
            raise ValueError(f"layer groups do not begin at multiples of {unit} bytes")
        return tuple(end // unit for end in self._byte_ends)

    def num_bytes(self, groups: GroupRange) -> int:
        """Of one block."""
        return self._byte_ends[groups.end] - self._byte_ends[groups.first]


@cache
def layer_groups(layout: KVLayout) -> LayerGroups:
    """At most MAX_GROUPS; the last has at most LAST_LAYERS layers, the others share the rest."""
    others = max(0, layout.num_layers - LAST_LAYERS)
    ends = [layout.num_layers]
    if others:
        per_piece = -(-MIN_PIECE_BYTES // layout.layer_bytes)
        number = min(MAX_GROUPS - 1, max(1, others // per_piece))
        ends = [others * (index + 1) // number for index in range(number)] + ends
    return LayerGroups(tuple(ends), layout.layer_bytes)
