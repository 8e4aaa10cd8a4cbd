"""What `baton up` decides to start."""

import re
from dataclasses import replace
from typing import Any

import pytest

from services.cli import up
from services.cli.__main__ import Parser
from services.cli.cluster.model_check import check_host_memory, check_model
from services.cli.cluster.plan import (
    Machine,
    Plan,
    Topology,
    WorkerRole,
    choose_topology,
    deal,
    make_plan,
)
from services.cli.demo import demo_plan
from shared.engine.loading.pool_size import GIB
from shared.errors import ModelError, SettingsError
from shared.model.checkpoint import load_checkpoint

CPU = Machine(num_cores=8, num_gpus=0)


def flag_of(plan: Plan, flag: str) -> list[str]:
    """What each worker is told by this flag; empty where it is not told."""
    flags = [spec.flags for spec in plan.processes("r", 1)[1:]]
    return [each[each.index(flag) + 1] if flag in each else "" for each in flags]


@pytest.mark.parametrize(
    ("requested", "num_gpus", "reach", "expected"),
    [
        (None, 0, False, "pd"),
        (None, 1, False, "agg"),
        (None, 2, False, "agg"),
        (None, 2, True, "pd"),
        ("pd", 1, False, "pd"),
        ("pd", 2, False, "pd"),
        ("agg", 0, False, "agg"),
        ("agg", 2, True, "agg"),
    ],
)
def test_topology_default_depends_on_gpus(
    requested: Topology | None, num_gpus: int, reach: bool, expected: str
) -> None:
    assert choose_topology(requested, num_gpus, reach=reach)[0] == expected
    assert choose_topology(requested, num_gpus, 2, reach=reach)[0] == (requested or "agg")


def test_sizes_are_found_by_each_worker() -> None:
    gpus = Machine(num_cores=8, num_gpus=4, reach=True)
    assert flag_of(make_plan({"tune": True}, {}, gpus), "--tune") == ["true"] * 4
    assert flag_of(make_plan({"tune": True, "tp": 2}, {}, gpus), "--tune") == ["true"] * 2


def test_default_is_one_prefill_and_one_decode_and_says_why() -> None:
    plan = make_plan({}, {}, CPU)
    assert plan.worker_names == ("prefill-0", "decode-0")
    assert plan.summary == (
        "pd (the default on a CPU): 1 prefill, 1 decode; KV auto; "
        "4 threads each (answers are not bit-exact; --threads 1 keeps them so)"
    )


def test_start_line_warns_only_of_threads_that_change_answers() -> None:
    assert make_plan({"threads": 1}, {}, CPU).summary.endswith("; 1 thread each")
    assert make_plan({}, {}, Machine(8, 2)).summary.endswith("; 4 threads each")


@pytest.mark.parametrize(
    ("flags", "environ"), [({"transport": "tcp"}, {}), ({}, {"BATON_TRANSPORT": "tcp"})]
)
def test_a_cell_takes_the_transport_that_is_named(
    flags: dict[str, str], environ: dict[str, str]
) -> None:
    for topology in ("pd", None):
        assert make_plan({}, {}, CPU, topology=topology).settings.handover.transport == "auto"
        plan = make_plan(flags, environ, CPU, topology=topology)
        assert plan.settings.handover.transport == "tcp"
        assert "KV tcp" in plan.summary
        for spec in plan.processes("r", 1)[1:]:
            assert spec.flags[spec.flags.index("--transport") + 1] == "tcp"
    for spec in make_plan({}, {}, CPU).processes("r", 1)[1:]:
        assert "--transport" not in spec.flags


def test_gpus_that_reach_each_other_are_shared_between_the_roles() -> None:
    plan = make_plan({}, {}, Machine(8, 4, reach=True))
    assert plan.summary == (
        "pd (the default with 4 GPUs that copy from each other's memory): 2 prefill, 2 decode; "
        "KV auto; 2 threads each"
    )
    assert flag_of(plan, "--device") == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert make_plan({"device": "cuda:1"}, {}, Machine(8, 4, reach=True)).topology == "agg"


@pytest.mark.parametrize(
    ("num_gpus", "counted", "role_tp", "expected"),
    [
        (2, {}, {}, (1, 1)),
        (3, {}, {}, (1, 2)),
        (8, {}, {}, (4, 4)),
        (8, {"num_prefill": 6}, {}, (6, 2)),
        (8, {"num_decode": 7}, {}, (1, 7)),
        (8, {"num_prefill": 2, "num_decode": 3}, {}, (2, 3)),
        (8, {}, {"prefill": 4}, (1, 4)),
        (8, {}, {"decode": 4}, (4, 1)),
        (2, {"num_prefill": 2}, {}, (2, 1)),
        (0, {}, {}, (1, 1)),
    ],
)
def test_workers_that_are_not_counted_fill_the_gpus(
    num_gpus: int,
    counted: dict[str, int],
    role_tp: dict[WorkerRole, int],
    expected: tuple[int, int],
) -> None:
    machine = Machine(8, num_gpus)
    flags = {"kv_blocks": 100}  # so that two workers may share a GPU
    plan = make_plan(flags, {}, machine, topology="pd", role_tp=role_tp, **counted)
    assert (plan.num_prefill, plan.num_decode) == expected


def test_gpus_that_do_not_get_a_decode_worker_each_and_one_line_says_why() -> None:
    plan = make_plan({}, {}, Machine(8, 4))
    assert plan.summary == (
        "agg (the default with 4 GPUs that cannot copy from each other's memory; "
        "--topology pd hands over by tcp): 4 decode; 2 threads each"
    )
    assert flag_of(plan, "--device") == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert make_plan({}, {}, Machine(8, 4), num_decode=2).num_decode == 2
    assert make_plan({"tp": 2}, {}, Machine(8, 4)).num_decode == 2
    assert make_plan({"device": "cuda:1"}, {}, Machine(8, 4)).worker_names == ("decode-0",)


@pytest.mark.parametrize("num_gpus", [0, 1, 2, 4])
def test_the_demo_starts_on_any_machine(num_gpus: int) -> None:
    plan = demo_plan(None, None, {}, Machine(8, num_gpus))
    assert (plan.topology, plan.num_prefill, plan.num_decode) == ("pd", 1, 1)
    assert plan.settings.compute.device == "cpu"
    own_model = demo_plan("m", None, {}, Machine(8, num_gpus))
    assert own_model.topology == ("agg" if num_gpus == 1 else "pd")
    assert len(own_model.worker_names) == (1 if num_gpus == 1 else 2)


def test_start_line_without_a_reason_has_none() -> None:
    plan = replace(make_plan({"threads": 1}, {}, CPU, topology="pd"), why="")
    assert plan.summary == "pd: 1 prefill, 1 decode; KV auto; 1 thread each"


def test_agg_starts_decode_workers_only() -> None:
    plan = make_plan({}, {}, CPU, topology="agg", num_decode=3)
    assert plan.worker_names == ("decode-0", "decode-1", "decode-2")
    assert plan.settings.engine.threads == 2


@pytest.mark.parametrize("machine", [CPU, Machine(8, 1), Machine(8, 2)])
def test_prefill_with_agg_is_refused(machine: Machine) -> None:
    topology: Topology | None = None if machine.num_gpus else "agg"
    with pytest.raises(SettingsError, match=r"--prefill has no meaning.*take --topology pd"):
        make_plan({}, {}, machine, topology=topology, num_prefill=1)
    with pytest.raises(SettingsError, match=r"--prefill-tp has no meaning.*take --topology pd"):
        make_plan({}, {}, machine, topology=topology, role_tp={"prefill": 1})


@pytest.mark.parametrize(("num_prefill", "num_decode"), [(0, 1), (1, 0), (33, 32), (-1, 1)])
def test_impossible_worker_counts_are_refused(num_prefill: int, num_decode: int) -> None:
    with pytest.raises(SettingsError):
        make_plan({}, {}, CPU, num_prefill=num_prefill, num_decode=num_decode)


@pytest.mark.parametrize(
    ("flags", "environ", "threads"),
    [({}, {}, 4), ({"threads": 7}, {}, 7), ({}, {"BATON_THREADS": "6"}, 6)],
)
def test_threads_share_the_cores_unless_given(
    flags: dict[str, int], environ: dict[str, str], threads: int
) -> None:
    assert make_plan(flags, environ, CPU).settings.engine.threads == threads


def test_more_workers_than_cores_get_one_thread_each() -> None:
    plan = make_plan({}, {}, Machine(2, 0), num_prefill=2, num_decode=2)
    assert plan.settings.engine.threads == 1


def test_specs_name_roles_and_give_every_process_the_settings() -> None:
    plan = make_plan({"model": "m", "host": "10.0.0.1"}, {}, CPU)
    gateway, prefill, decode = plan.processes("unix:///r", 1234, "-t")
    assert [spec.role for spec in (gateway, prefill, decode)] == ["gateway", "prefill", "decode"]
    assert gateway.flags == (
        "--model",
        "m",
        "--threads",
        "4",
        "--host",
        "10.0.0.1",
        "--port",
        "1234",
        "--topology",
        "pd",
        "--drain-s",
        "1.0",
    )
    assert decode.flags == (
        *("--model", "m", "--threads", "4", "--port", "0", "--worker-id", "decode-0-t"),
        *("--drain-s", "1.0"),
    )
    assert prefill.environment == {"BATON_REDIS": "unix:///r"}


def test_a_port_for_kv_that_is_named_is_prefill_s() -> None:
    """Decode workers listen too, wherever there is room: two cannot have one port."""
    flags = {"transfer_port": 9100, "transfer_advertise": "h:9100"}
    plan = make_plan(flags, {}, CPU, num_decode=2)
    assert flag_of(plan, "--transfer-port") == ["9100", "", ""]
    assert flag_of(plan, "--transfer-advertise") == ["h:9100", "", ""]


def test_a_worker_has_settings_of_its_own() -> None:
    plan = make_plan({}, {}, CPU, num_decode=2)
    own = {"decode-1": {"worker_port": 9200, "worker_advertise": "h:9300"}}
    plan = replace(plan, own_settings=own)
    assert flag_of(plan, "--worker-port") == ["", "", "9200"]
    assert flag_of(plan, "--worker-advertise") == ["", "", "h:9300"]


def test_secrets_are_in_the_environment_only() -> None:
    secret = {"BATON_KV_SECRET": "hidden-salt"}
    for spec in make_plan({}, secret, CPU).processes("unix:///r", 1):
        assert spec.environment.items() >= secret.items()
        assert "hidden-salt" not in " ".join(spec.flags)


def test_workers_are_spread_over_gpus() -> None:
    counts: dict[str, Any] = {"num_prefill": 2, "num_decode": 1}
    plan = make_plan({"kv_blocks": 100}, {}, Machine(8, 2), topology="pd", **counts)
    assert flag_of(plan, "--device") == ["cuda:0", "cuda:1", "cuda:0"]


@pytest.mark.parametrize(("num_gpus", "topology"), [(2, "pd"), (1, "pd")])
def test_workers_that_share_a_gpu_say_how_much_of_it(
    num_gpus: int, topology: Topology | None
) -> None:
    machine = Machine(8, num_gpus)
    workers: dict[str, Any] = {"num_prefill": num_gpus, "num_decode": 1}
    with pytest.raises(SettingsError, match=f"on {num_gpus} GPUs.* --kv-blocks"):
        make_plan({}, {}, machine, topology=topology, **workers)
    assert make_plan({"kv_blocks": 9}, {}, machine, topology=topology, **workers)
    with pytest.raises(SettingsError, match="2 workers on 1 GPUs"):
        make_plan({"device": "cuda:1"}, {}, Machine(8, 4), topology="pd")


def test_ranks_of_a_worker_have_gpus_of_their_own() -> None:
    plan = make_plan({"tp": 2}, {}, Machine(num_cores=8, num_gpus=4), num_decode=2)
    assert plan.topology == "agg"
    assert plan.summary.startswith("agg (the default with tp 2): 2 decode (tp 2); ")
    assert flag_of(plan, "--device") == ["cuda:0", "cuda:2"]
    assert make_plan({"tp": 2}, {}, CPU).topology == "agg"


def test_each_role_has_its_tp_and_begins_where_the_worker_before_it_ends() -> None:
    plan = make_plan(
        {}, {}, Machine(21, 8), topology="pd", num_prefill=2, num_decode=3, role_tp={"prefill": 2}
    )
    assert flag_of(plan, "--device") == ["cuda:0", "cuda:2", "cuda:4", "cuda:5", "cuda:6"]
    assert flag_of(plan, "--tp") == ["2", "2", "", "", ""]
    assert ": 2 prefill (tp 2), 3 decode; " in plan.summary
    assert plan.settings.engine.threads == 3, "21 cores, 7 ranks"


@pytest.mark.parametrize(
    ("flags", "role_tp", "expected"),
    [
        ({"tp": 2}, {}, ["2", "2"]),
        ({"tp": 2}, {"decode": 1}, ["2", ""]),
        ({"tp": 4}, {"prefill": 2, "decode": 8}, ["2", "8"]),
        ({}, {"decode": 2}, ["", "2"]),
    ],
)
def test_tp_gives_both_roles_theirs_unless_one_has_its_own(
    flags: dict[str, int], role_tp: dict[WorkerRole, int], expected: list[str]
) -> None:
    plan = make_plan(flags, {}, CPU, topology="pd", role_tp=role_tp)
    assert flag_of(plan, "--tp") == expected


def test_a_worker_s_gpus_follow_each_other() -> None:
    assert list(deal((1, 1, 1), 2)) == [0, 1, 0]
    assert list(deal((2, 1), 2)) == [0, 0]
    assert list(deal((1, 2), 2)) == [0, 0], "cuda:1 and cuda:2 are not there"
    assert list(deal((2, 1, 4, 1), 8)) == [0, 2, 3, 7]


def test_workers_with_one_device_named_begin_there() -> None:
    named: dict[str, Any] = {"device": "cuda:4", "kv_blocks": 64}
    plan = make_plan(named, {}, Machine(8, 8), topology="pd", role_tp={"prefill": 2})
    assert flag_of(plan, "--device") == ["cuda:4", "cuda:4"]
    with pytest.raises(SettingsError, match="2 workers on 2 GPUs take 3"):
        make_plan({"device": "cuda:4"}, {}, Machine(8, 8), topology="pd", role_tp={"prefill": 2})
    alone = make_plan({"device": "cuda:4", "tp": 2}, {}, Machine(8, 8))
    assert flag_of(alone, "--device") == ["cuda:4"]


def test_gpus_are_counted_over_all_ranks_unless_kv_blocks_let_workers_share() -> None:
    with pytest.raises(SettingsError, match="2 workers on 3 GPUs take 4"):
        make_plan({"tp": 2}, {}, Machine(8, 3), num_decode=2)
    two: dict[str, Any] = {"topology": "pd", "role_tp": {"prefill": 2}}
    with pytest.raises(SettingsError, match=r"2 workers on 2 GPUs take 3.* --kv-blocks"):
        make_plan({}, {}, Machine(8, 2), **two)
    shared = make_plan({"kv_blocks": 64}, {}, Machine(8, 2), **two)
    assert flag_of(shared, "--device") == ["cuda:0", "cuda:0"]
    apart = make_plan({}, {}, Machine(8, 3), **two)
    assert flag_of(apart, "--device") == ["cuda:0", "cuda:2"]
    with pytest.raises(SettingsError, match="tp 4 takes 4 GPUs, and there are 2"):
        make_plan({"tp": 4, "kv_blocks": 64}, {}, Machine(8, 2))


@pytest.mark.parametrize(("role_tp", "says"), [(9, "9 is above 8"), (0, "0 is below 1")])
def test_a_role_s_tp_has_the_limits_of_the_setting(role_tp: int, says: str) -> None:
    with pytest.raises(SettingsError, match=f"--decode-tp: {says}"):
        make_plan({}, {}, CPU, role_tp={"decode": role_tp})


def test_up_reads_the_tp_of_each_role() -> None:
    parser = Parser(prog="baton up")
    up.add_arguments(parser)
    asked = ["--topology", "pd", "--tp", "2", "--decode-tp", "1"]
    assert up.plan_for(parser.parse_args(asked), CPU).tps == (2, 1)
    asked = ["--topology", "pd", "--prefill-tp", "4", "--decode", "2"]
    assert up.plan_for(parser.parse_args(asked), CPU).tps == (4, 1, 1)


def test_device_cpu_ignores_gpus() -> None:
    plan = make_plan({"device": "cpu"}, {}, Machine(8, 1))
    assert plan.topology == "pd"
    assert all("cuda" not in " ".join(spec.flags) for spec in plan.processes("r", 1))


def test_unknown_variable_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="BATON_KV_BLOKS"):
        make_plan({}, {"BATON_KV_BLOKS": "1"}, CPU)


def test_a_model_that_cannot_be_split_so_is_refused_before_anything_starts() -> None:
    check_model(make_plan({"tp": 2}, {}, CPU, topology="pd", role_tp={"decode": 4}))
    with pytest.raises(ModelError, match=r"tp 3: 8 .* over 3 ranks; demo takes tp 1, 2, 4, 8"):
        check_model(make_plan({}, {}, CPU, topology="pd", role_tp={"decode": 3}))


@pytest.mark.parametrize(
    ("flags", "topology", "told"),
    [
        ({"kv_memory_mib": 8192}, "pd", "2 workers take 16.0 GiB, 12.0 GiB are free"),
        ({"kv_memory_mib": 16384}, "agg", "a worker takes 16.0 GiB, 12.0 GiB are free"),
        ({"kv_memory_mib": 8192, "tp": 2}, "agg", "a worker takes 16.0 GiB, 12.0 GiB are free"),
        ({"kv_blocks": 349525}, "agg", "a worker takes 16.0 GiB, 12.0 GiB are free"),
    ],
)
def test_workers_that_do_not_fit_into_the_machine_are_told_a_pool_that_does(
    flags: dict[str, int], topology: Topology, told: str
) -> None:
    plan = make_plan({"device": "cpu", **flags}, {}, CPU, topology=topology)
    checkpoint = load_checkpoint("demo")
    with pytest.raises(SettingsError, match=re.escape(told)) as error:
        check_host_memory(plan, checkpoint, 12 * GIB)
    (flag, number) = re.findall(r"--kv-(memory-mib|blocks) (\d+) fits", str(error.value))[0]
    name = f"kv_{flag.replace('-', '_')}"
    advised = make_plan({"device": "cpu", **flags, name: int(number)}, {}, CPU, topology=topology)
    check_host_memory(advised, checkpoint, 12 * GIB)


@pytest.mark.parametrize(
    "flags", [{"kv_memory_mib": 10**9}, {"kv_blocks": 10**9}, {"kv_blocks": 1}]
)
def test_up_looks_for_the_memory_of_a_cpu_alone(flags: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="--kv-"):
        check_model(make_plan({"device": "cpu", **flags}, {}, CPU))
    gpus = make_plan({**flags, "kv_blocks": 2}, {}, Machine(8, 1))
    check_model(gpus)
