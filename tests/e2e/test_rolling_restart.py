"""Every worker restarted in turn under 16 streams: what decodes goes on elsewhere with its KV.

Guards: a rolling update that waits for the longest answer, breaks it or has its prompt computed
again.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shared.state.embedded import EmbeddedRedis
from shared.telemetry import attributes as names
from tests.e2e.cluster import Cell, Cluster, drawn_bodies
from tests.support.measured import Measured

NUM_STREAMS = 16
NUM_TOKENS = 600
BLOCK_SIZE = 16
DRAIN_LIMIT_S = 120.0
DRAINED_S = 15.0
"""of a worker with streams that go on for longer"""


def restart(cell: Cell, cluster: Cluster, role: str, name: str) -> float:
    """As an update does it: SIGTERM, and another once it has ended. Seconds to its end."""
    num_workers = len(cluster.workers())
    drained_s = cell.stop(name)
    cell.serve_again(role, name)
    cluster.wait(lambda: [w["state"] for w in cluster.workers()] == ["ready"] * num_workers, 60)
    return drained_s


@pytest.mark.redis
@pytest.mark.parametrize("roles", [("prefill", "decode", "decode"), ("decode", "decode")])
def test_a_rolling_restart_computes_no_prompt_again(
    roles: tuple[str, ...], tmp_path: Path, measured: Measured
) -> None:
    bodies = drawn_bodies(NUM_STREAMS, NUM_TOKENS, 5, lambda rng: rng.randrange(60, 300))
    flags = ("--kv-blocks", "2048", "--drain-s", str(DRAIN_LIMIT_S))
    topology = "pd" if "prefill" in roles else "agg"
    with EmbeddedRedis() as server, closing(Cell(tmp_path, server)) as cell:
        workers = [(role, f"{role}-{at}") for at, role in enumerate(roles)]
        for role, name in workers:
            cell.serve(role, "--worker-id", name, *flags, name=name)
        with cell.gateway("gateway", "--topology", topology, num_workers=len(roles)) as cluster:
            with cluster.streams(bodies) as streams:
                streams.wait_tokens(4, num_streams=NUM_STREAMS)
                drained_s = [restart(cell, cluster, role, name) for role, name in reversed(workers)]
                seen = streams.wait(180)
            assert [stream for stream in seen if not stream.complete] == []
            receipts = [cluster.receipt(stream.rid) for stream in seen]
            undisturbed = cluster.answers(bodies)
            assert [stream.answer for stream in seen] == [stream.answer for stream in undisturbed]
            cluster.wait_blocks_back()
    ends = {attempt["end"] for receipt in receipts for attempt in receipt["attempts"]}
    assert ends <= {"moved", "done", "refused_no_room"}
    again = [num for receipt in receipts for num in computed_again(receipt)]
    measured.at_least("moves", len(again), NUM_STREAMS)
    measured.at_most("prompt tokens computed for one", max(again), 2 * BLOCK_SIZE)
    measured.at_most("drained after", max(drained_s), DRAINED_S, "s")
    measured.note(f"worst gap: {max(receipt['worst_gap_ms'] for receipt in receipts):.0f} ms")


def computed_again(receipt: dict[str, Any]) -> list[int]:
    """Prompt tokens that each attempt computed after the first one that was not refused: a worker
    without room computes nothing."""
    taken = [each["epoch"] for each in receipt["attempts"] if each["end"] != "refused_no_room"]
    return [
        stage["attributes"][names.PREFILLED_TOKENS]
        for stage in receipt["stages"]
        if stage["name"] == names.SPAN_PREFILL and stage["epoch"] > taken[0]
    ]
