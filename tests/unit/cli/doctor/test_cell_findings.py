"""What the facts of a cell say: each fault is named with its cure, health has none."""

from dataclasses import replace

import pytest

from services.cli.doctor.finding import Finding, Section, exit_code, fail, json_lines, ok, render
from services.cli.doctor.gateway import GatewayFacts, judge_gateway, judge_pair
from services.cli.doctor.redis_server import RedisFacts, judge_redis
from services.cli.doctor.workers import WorkerFacts, judge_worker, served_pool
from shared.protocol import Hello
from shared.state.registry import WorkerEntry
from shared.transfer_address import TransferAddress

REDIS = RedisFacts("7.2.4", "noeviction", 2**30, 2**20, is_replica=False, clock_s=0.01)
POOL = "demo@weights:layout"
ENTRY = WorkerEntry("d", "d.1", "decode", "::1", 9, POOL, 1, "2026.1", "demo", 99, 16)
HELLO = Hello("decode", "d.1", POOL)
LINKED = frozenset({"d.1"})
GATEWAY = GatewayFacts("http://g", is_ready=True, said="", redis="ok", status={"version": "2026.1"})


def faults(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(each.level, each.check) for each in findings if each.level != "ok"]


@pytest.mark.parametrize(
    ("change", "fault", "cure"),
    [
        ({"version": "6.0.16"}, ("FAIL", "Redis"), "run Redis 6.2 or newer"),
        ({"is_replica": True}, ("FAIL", "Redis"), "name its primary"),
        ({"policy": "volatile-ttl"}, ("FAIL", "Redis policy"), "noeviction"),
        ({"used_bytes": 2**30}, ("FAIL", "Redis memory"), "maxmemory"),
        ({"used_bytes": 2**30 * 9 // 10}, ("warn", "Redis memory"), "maxmemory"),
        ({"clock_s": 5.0}, ("warn", "clock"), "NTP"),
        ({"clock_s": -5.0}, ("warn", "clock"), "NTP"),
    ],
)
def test_what_is_wrong_with_a_redis(
    change: dict[str, object], fault: tuple[str, str], cure: str
) -> None:
    found = judge_redis(replace(REDIS, **change))  # type: ignore[arg-type]
    assert faults(found) == [fault]
    assert cure in "".join(map(str, found))
    assert not faults(judge_redis(REDIS))


def test_a_clock_that_is_off_says_whose() -> None:
    said = {off: str(judge_redis(replace(REDIS, clock_s=off))[3]) for off in (5.0, -5.0)}
    assert "5.0 s behind Redis'" in said[5.0]
    assert "5.0 s ahead of Redis'" in said[-5.0]


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"is_ready": False, "said": "no worker"}, "FAIL"),
        ({"redis": "refuses writes"}, "FAIL"),
        ({"said": "1 registered worker is not linked"}, "warn"),
    ],
)
def test_what_is_wrong_with_a_gateway(change: dict[str, object], level: str) -> None:
    found = judge_gateway(replace(GATEWAY, **change))  # type: ignore[arg-type]
    assert faults(found) == [(level, "gateway")]
    assert not faults(judge_gateway(GATEWAY))


def test_a_status_that_nobody_may_see_is_a_warning_with_its_cure() -> None:
    found = judge_gateway(replace(GATEWAY, status={}, unseen="http://g: 401 no key"))
    assert faults(found) == [("warn", "status")]
    assert "BATON_API_KEY" in str(found[1])
    elsewhere = judge_gateway(replace(GATEWAY, status={}, is_elsewhere=True))
    assert not faults(elsewhere)
    assert "admin port" in str(elsewhere[1])


@pytest.mark.parametrize(
    ("transport", "why", "hosts", "level"),
    [
        ("mapped", "read right", {"p": "a", "d": "a"}, "ok"),
        ("tcp", "no such file", {"p": "a", "d": "a"}, "warn"),
        ("tcp", "named by --transport", {"p": "a", "d": "a"}, "ok"),
        ("tcp", "no such file", {"p": "a", "d": "b"}, "ok"),
        ("tcp", "no such file", {}, "ok"),
    ],
)
def test_tcp_within_a_host_is_a_warning_unless_it_was_asked_for(
    transport: str, why: str, hosts: dict[str, str], level: str
) -> None:
    pair = {"prefill": "p", "decode": "d", "transport": transport, "why": why}
    assert judge_pair(pair, hosts).level == level


def test_a_release_that_differs_is_a_warning() -> None:
    served = served_pool([ENTRY], LINKED, "2026.2")
    found = judge_worker(WorkerFacts(ENTRY, HELLO), served, has_secret=True)
    assert faults(found) == [("warn", "worker d")]
    assert "finish the upgrade" in str(found[0])


def test_the_pool_is_that_of_linked_workers_else_the_largest() -> None:
    others = [replace(ENTRY, incarnation=f"o.{number}", pool="demo@x:y") for number in (1, 2)]
    assert served_pool([ENTRY, *others], LINKED, "").pool == POOL
    assert served_pool([ENTRY, *others], frozenset(), "").pool == "demo@x:y"
    assert served_pool([ENTRY, *others], None, "").pool == "demo@x:y"


def test_a_gateway_of_another_name_is_what_its_workers_are_judged_by() -> None:
    served = served_pool([ENTRY], frozenset(), "", "fancy")
    unreachable = WorkerFacts(ENTRY, None, link_error="timed out")
    (found,) = judge_worker(unreachable, served, has_secret=True)
    assert found.level == "warn", "it may be another gateway's, which this one need not reach"
    assert "serves demo, this gateway fancy" in str(found)
    assert "--served-model-name" in str(found)


def test_a_worker_says_why_its_probe_says_no() -> None:
    entry = replace(ENTRY, unready="no KV canary comes by tcp with p: it hung up")
    served = served_pool([entry], LINKED, "")
    (found,) = judge_worker(WorkerFacts(entry, HELLO), served, has_secret=True)
    assert found.level == "FAIL" and "is not ready: no KV canary comes by tcp with p" in str(found)


def test_a_socket_that_fails_is_no_fault_where_a_port_is_or_on_another_host() -> None:
    served = served_pool([ENTRY], LINKED, "")
    both = replace(HELLO, transfer_address=TransferAddress("h:1", "/s"))
    only = replace(HELLO, transfer_address=TransferAddress(socket="/s"))
    facts = WorkerFacts(ENTRY, both, socket_error="no such file")
    assert not faults(judge_worker(facts, served, has_secret=True))
    assert faults(judge_worker(replace(facts, hello=only), served, has_secret=True))
    away = replace(facts, hello=only, same_host=False)
    assert not faults(judge_worker(away, served, has_secret=True))


def test_a_finding_is_a_line_and_a_fault_has_a_cure() -> None:
    found = [Section("s", (ok("a", "fine"), fail("b", "broken " * 12, "mend it")))]
    assert render(found).splitlines()[1:3] == [
        "  ok    a: fine",
        f"  FAIL  b: {'broken ' * 12}; mend it",
    ]
    assert max(map(len, render(found, 60).splitlines())) <= 60
    assert render(found).endswith("1 FAIL, 0 warn of 2 checks\n")
    assert '"section": "s", "check": "a", "level": "ok"' in json_lines(found)
    assert exit_code(found) == 1
    assert exit_code([Section("s", (ok("a", "fine"),))]) == 0
    with pytest.raises(AssertionError):
        Finding("a", "FAIL", "broken")
