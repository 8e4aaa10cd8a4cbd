"""Copies between pools, as `baton bench handover` times them."""

from services.cli.bench.handover.copies import Batches, Pools, host_pools, measure
from services.cli.bench.handover.copy_rates import finding


def test_pieces_lie_apart_and_the_whole_has_as_many_bytes() -> None:
    asked: list[Batches] = []

    def seconds(batches: Batches) -> float:
        asked.append(batches)
        return 2e-9 if len(batches[0]) == 1 else 8e-9

    one, more = measure(Pools(1000, 5000, seconds), block_bytes=8, piece_bytes=2, amounts=[6])
    scattered, whole = asked[0], asked[-1]
    assert scattered == [[(1000, 5000, 2), (1016, 5016, 2), (1032, 5032, 2)]]
    assert whole == [[(1000, 5000, 6)]] * 8
    assert (one["batches"], one["gb_per_s"], one["contiguous_gb_per_s"]) == (1, 0.75, 3.0)
    assert (more["batches"], more["gb_per_s"]) == (8, 6.0)


def test_host_pools_copy() -> None:
    pools = host_pools("cpu", "cpu", 64)
    assert pools.seconds([[(0, 32, 16)], [(40, 0, 8)]]) > 0.0


def test_shares_have_goals_between_gpus_only() -> None:
    line = {
        "unit": "blocks",
        "piece_bytes": 2**21,
        "num_bytes": 2**24,
        "mib": 16,
        "batches": 1,
        "n": 30,
        "gb_per_s": 240.0,
        "contiguous_gb_per_s": 320.0,
    }
    found = finding(line, on_gpus=True)
    assert (found.name, found.value, found.goal) == ("blocks of 2048 KiB, 16 MiB", 0.75, 0.75)
    assert found.met
    assert finding(line | {"gb_per_s": 239.0}, on_gpus=True).met is False
    assert finding(line | {"mib": 64}, on_gpus=True).goal is None
    assert finding(line, on_gpus=False).goal is None
