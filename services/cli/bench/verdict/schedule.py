"""In which order topologies take their turns. Pure."""

from collections.abc import Iterator, Sequence


def turns(topologies: Sequence[str], seeds: Sequence[int], start: int) -> Iterator[tuple[str, int]]:
    """(topology, seed): all topologies for a seed before the next seed. From seed to seed the order
    moves on by one place, as the rows of a Latin square: what a machine does over time, such as
    getting warm, favours none. `start` moves the first row, from rate to rate."""
    for row, seed in enumerate(seeds, start=start):
        for place in range(len(topologies)):
            yield topologies[(place + row) % len(topologies)], seed
