"""Equal cells: their cores, their plans, and what is said of cells that run already."""

import os
import subprocess
import sys
from typing import Any

import pytest

from services.cli.bench.serve.endpoint import EndpointFacts
from services.cli.bench.verdict.contender import doubts, planned_contenders
from services.cli.bench.verdict.core_sets import core_sets, pin, staying_on
from services.cli.bench.verdict.measurement import is_idle, lost_workers
from services.cli.cluster.plan import Machine
from shared.errors import SettingsError


def test_each_process_has_its_own_cores_or_none_has() -> None:
    sets = core_sets(range(8), 2, None)
    assert sets is not None
    assert (sets.client, sets.gateway) == ([0], [1])
    assert [list(one) for one in sets.workers] == [[2, 3, 4], [5, 6, 7]]
    assert sets.text == "client on core 0, gateway on 1, workers on 3 each"
    one_each = core_sets(range(8), 2, 1)
    assert one_each is not None
    assert [list(one) for one in one_each.workers] == [[2], [3]]
    for num, threads in ((0, None), (1, None), (3, None), (5, 2)):
        assert core_sets(range(num), 2, threads) is None


def test_a_process_and_its_children_are_pinned() -> None:
    core = min(os.sched_getaffinity(0))
    script = (
        "import subprocess, sys, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "with subprocess.Popen(['sleep', '60']) as child:\n"
        "    print(child.pid, flush=True)\n"
        "    sys.stdin.read()\n"
        "    child.kill()\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(  # noqa: S603 our own script
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        pin(parent.pid, [core])
        threads = [int(name) for name in os.listdir(f"/proc/{parent.pid}/task")]  # noqa: PTH208
        assert len(threads) == 2
        assert all(os.sched_getaffinity(one) == {core} for one in (child, *threads))
        parent.stdin.close()


def test_this_process_is_free_again_afterwards() -> None:
    before = os.sched_getaffinity(0)
    with staying_on([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_each_split_of_the_workers_takes_part_with_equal_engines() -> None:
    flags = {"model": "demo", "device": "cpu", "port": 0, "kv_blocks": 64}
    contenders, _ = planned_contenders(flags, Machine(4, 0), 3)
    names = [one.topology for one in contenders]
    assert names == ["1P2D", "2P1D", "3 aggregated workers"]
    plans = [one.plan for one in contenders if one.plan is not None]
    assert [len(plan.worker_names) for plan in plans] == [3, 3, 3]
    assert len({(plan.settings.engine, plan.settings.kv) for plan in plans}) == 1


def told(*roles: str, model: str = "m") -> EndpointFacts:
    workers = [{"role": role, "state": "ready", "incarnation": f"{role}.1"} for role in roles]
    return EndpointFacts(model, 4096, "1", None, {"workers": workers} if roles else {})


def test_running_cells_must_be_equal() -> None:
    pd, agg = told("prefill", "decode"), told("decode", "decode")
    assert doubts({"pd": pd, "agg": agg}) == []
    with pytest.raises(SettingsError, match="2 workers at --url-pd and 1 at --url-agg"):
        doubts({"pd": pd, "agg": told("decode")})
    assert "no prefill worker" in doubts({"pd": agg, "agg": agg})[0]
    assert "is not known" in doubts({"pd": told(), "agg": agg})[0]
    other = told("decode", "decode", model="n")
    assert doubts({"pd": pd, "agg": other}) == ["model differs: m at pd, n at agg"]


def status(*names: str, live: int = 0, running: int = 0) -> dict[str, Any]:
    workers = [
        {"incarnation": name, "state": "ready", "running": running, "waiting": 0} for name in names
    ]
    return {"requests": {"live": live}, "workers": workers}


def test_a_worker_that_is_gone_or_another_makes_a_run_invalid() -> None:
    before = status("prefill-0.a", "decode-0.b")
    assert lost_workers(before, before) == ""
    assert lost_workers(before, status("prefill-0.a")) == "lost decode-0 during the run"
    assert lost_workers(before, status("prefill-0.a", "decode-0.c")) != ""
    assert lost_workers({}, {}) == ""


def test_idle_is_no_request_anywhere() -> None:
    assert is_idle(status("a"))
    assert is_idle({})
    assert not is_idle(status("a", live=1))
    assert not is_idle(status("a", running=1))
