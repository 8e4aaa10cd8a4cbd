"""The slope of a process's memory, and how sure it is."""

import os
import random
import subprocess
import sys

import psutil
import pytest

from services.cli.chaos.memory import LEAST_S, Growth, MemoryLog, growth, resident_bytes

HOURS_S = 7200
MB = 10**6


def samples(slope_per_h: float, noise: float, seed: int = 1) -> list[tuple[float, float]]:
    numbers = random.Random(seed)  # noqa: S311
    return [
        (1000.0 + at_s, 80 * MB + slope_per_h * at_s / 3600 + numbers.gauss(0, noise))
        for at_s in range(0, HOURS_S, 5)
    ]


def grown(found: list[tuple[float, float]]) -> Growth:
    one = growth("gateway", found)
    assert one is not None
    return one


def test_a_steady_growth_is_found_exactly() -> None:
    one = grown(samples(7 * MB, 0))
    assert one.slope_bytes_per_h == pytest.approx(7 * MB, rel=1e-3)
    assert one.bound_bytes_per_h == pytest.approx(7 * MB, rel=1e-2)
    assert one.first_bytes == pytest.approx(80 * MB + 7 * MB * (1 / 6 + 1 / 48) * 2, rel=1e-3)
    assert one.too_much


def test_the_slope_is_below_its_bound_19_times_of_20() -> None:
    found = [grown(samples(0, 3 * MB, seed)) for seed in range(400)]
    below = sum(one.bound_bytes_per_h > 0 for one in found)
    assert 0.93 <= below / len(found) <= 0.995


def test_levels_that_follow_each_other_make_it_less_sure() -> None:
    """A level that comes back slowly; without the widening the bound held 3 times of 4."""
    held = 0
    for seed in range(300):
        numbers = random.Random(seed)  # noqa: S311
        level, found = 0.0, []
        for at_s in range(0, HOURS_S, 5):
            level += -level / 120 + numbers.gauss(0, 0.3 * MB)
            found.append((float(at_s), 80 * MB + level))
        held += grown(found).bound_bytes_per_h > 0
    assert held / 300 >= 0.85


def test_a_process_that_was_not_seen_all_the_time_is_told() -> None:
    log = MemoryLog({"gateway": psutil.Process()})
    log._samples["gateway"] = [(float(at_s), 1) for at_s in range(0, 7200, 5)]
    assert log.unjudged() == []
    log._samples["gateway"] = [one for one in log._samples["gateway"] if not 3000 < one[0] < 3700]
    assert log.unjudged() == ["gateway"]


def test_what_was_taken_at_the_start_is_no_growth() -> None:
    warm = [(at_s, level if at_s > 2000 else level / 2) for at_s, level in samples(0, 0)]
    assert grown(warm).bound_bytes_per_h == pytest.approx(0)


def test_a_short_run_demands_nothing() -> None:
    assert Growth("gateway", 0, 6 * MB, 6 * MB, LEAST_S).too_much
    assert not Growth("gateway", 0, 6 * MB, 6 * MB, LEAST_S - 1).too_much
    assert not Growth("gateway", 0, 4 * MB, 5 * MB, LEAST_S).too_much


@pytest.mark.parametrize("found", [[], [(1.0, 5.0)], samples(0, 0)[:20]])
def test_too_few_samples_say_nothing(found: list[tuple[float, float]]) -> None:
    assert growth("gateway", found) is None


def test_a_process_holds_what_it_fills() -> None:
    code = "import sys; held = bytearray(b'a') * 50_000_000; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 50 * MB < resident_bytes(process.pid) < 50 * MB + 50 * MB
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            resident_bytes(process.pid)
