"""Short forms of `make kill-campaign`, `make stopped-worker`, `make slow-link`, `make redis-ways`,
`make cancels` and `make kv-pressure`: none of them rots, and a gross fault is seen early."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.campaigns import cancels, kill_campaign, redis_ways, stopped_worker
from tests.campaigns.faults import Size
from tests.campaigns.figures import Figure
from tests.campaigns.full_cells import kv_pressure
from tests.campaigns.slow_cell import Transport
from tests.campaigns.slow_link import Phases, Shape, run_slow_link
from tests.support.measured import Measured

pytestmark = [pytest.mark.alone, pytest.mark.clock]

NUM_ASKS = 16
MOST_TOKENS = 160
KILL_EVERY_S = 4.0
SHORT_WAYS = redis_ways.Size(
    num_streams=4,
    num_tokens=400,
    calm_s=0.5,
    away_s=1.0,
    outage_s=3.0,
    per_s=20.0,
    max_extra_gap_ms=1000,
)
SHORT_PHASES = Phases(calibrate_s=2, calm_s=4, throttled_s=12, lifted_s=2)


def judge(figures: Sequence[Figure], measured: Measured) -> None:
    for figure in figures:
        measured.note(str(figure))
    assert [str(figure) for figure in figures if not figure.met] == []


def test_workers_killed_under_16_streams(tmp_path: Path, measured: Measured) -> None:
    size = Size(5.5 * KILL_EVERY_S, NUM_ASKS, MOST_TOKENS)
    fault = kill_campaign.Kill(whole=4)
    faulted = asyncio.run(kill_campaign.run(tmp_path, size, KILL_EVERY_S, fault))
    judge(kill_campaign.figures(faulted), measured)


def test_a_stopped_decode_worker_under_16_streams(tmp_path: Path, measured: Measured) -> None:
    size = Size(3 * stopped_worker.EVERY_S, NUM_ASKS, MOST_TOKENS)
    faulted = asyncio.run(stopped_worker.run(tmp_path, size))
    judge(stopped_worker.figures(faulted), measured)


@pytest.mark.parametrize("transport", ["tcp", "mapped"])
def test_a_link_of_a_tenth_of_what_the_load_needs(
    transport: Transport, tmp_path: Path, measured: Measured
) -> None:
    slowed = asyncio.run(run_slow_link(tmp_path, Shape(1, 1, transport), SHORT_PHASES, seed=1))
    judge(slowed.figures(), measured)


def test_redis_answers_oddly_fails_over_and_is_gone(tmp_path: Path, measured: Measured) -> None:
    ways = (redis_ways.odd_answers, redis_ways.failed_over, redis_ways.hour_ahead)
    judge(asyncio.run(redis_ways.run(tmp_path, SHORT_WAYS, ways)), measured)


def test_clients_hang_up_one_by_one_and_together(tmp_path: Path, measured: Measured) -> None:
    size = cancels.Size(num_single=12, num_storms=1, num_at_once=60)
    judge(asyncio.run(cancels.run(tmp_path, size)), measured)


def test_one_load_over_the_three_policies_of_kv_pressure(
    tmp_path: Path, measured: Measured
) -> None:
    size = kv_pressure.Size(num_asks=16, num_streams=16, shapes=("agg",))
    judge(asyncio.run(kv_pressure.run(tmp_path, size, seed=1)), measured)
