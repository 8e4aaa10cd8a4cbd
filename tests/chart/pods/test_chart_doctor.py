"""`baton doctor` in the chart: before a worker, with its flags and devices; after an install, at
the whole cell. Its command lines are run here."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from services.cli.__main__ import Parser
from services.cli.doctor import command as doctor
from services.cli.flags import given_settings
from shared.settings.groups import Settings
from shared.settings.load import load_settings
from tests.chart.process_rules import POD, processes, settings_of
from tests.chart.release import Object, Release, render
from tests.chart.value_sets import COLOCATED, DOCTOR, DOCTOR_COLOCATED, EXTENDED
from tests.support.fakes.served_app import ServedApp, serve_app
from tests.support.models.text_models import byte_level_tokenizer, write_text_model

STEP = {"doctor": {"initContainer": True}}
SETS = {"apart": DOCTOR, "colocated": DOCTOR_COLOCATED}


def steps(release: Release) -> Iterator[tuple[str, Object, Object]]:
    """(role, worker's container, the doctor's step before it)"""
    for role, pod, container in processes(release):
        for step in pod["spec"].get("initContainers", []):
            if step["command"] == ["baton"] and f"--worker={role}" in step["args"]:
                yield role, container, step


def looks_at(step: Object) -> Settings:
    """What the step will judge by."""
    args = step["args"]
    for reference, text in POD.items():
        args = [arg.replace(reference, text) for arg in args]
    assert args[0] == "doctor"
    parser = Parser(prog="baton doctor")
    doctor.add_arguments(parser)
    return load_settings(given_settings(parser.parse_args(args[1:])), {})


@pytest.mark.parametrize("name", SETS)
def test_a_worker_is_looked_at_with_its_own_flags(name: str) -> None:
    found = list(steps(render(SETS[name])))
    assert [role for role, _, _ in found] == ["prefill", "decode"]
    for role, container, step in found:
        assert looks_at(step) == settings_of(container)
        assert step["args"][:2] == ["doctor", f"--worker={role}"]
        assert step["image"] == container["image"]
    changed = copy.deepcopy(found[0][2])
    changed["args"].append("--block-size=64")
    assert looks_at(changed) != settings_of(found[0][1])


@pytest.mark.parametrize("name", SETS)
def test_a_step_asks_for_what_its_worker_asks_for(name: str) -> None:
    """The kubelet takes the larger of both for the pod, and the worker gets the step's GPU."""
    for _, container, step in steps(render(SETS[name])):
        assert step["resources"] == container["resources"]
        assert step["securityContext"] == container["securityContext"]


def test_a_step_has_the_hub_s_token_and_no_secret_of_the_cell() -> None:
    for _, container, step in steps(render(DOCTOR)):
        files = [item["name"] for item in step["env"] if item["name"].endswith(("_FILE", "_PATH"))]
        assert files == ["HF_TOKEN_PATH"]
        secrets = {m["name"] for m in step["volumeMounts"] if m["name"].endswith("-secret")}
        assert secrets == {"hub-secret"}
        others = {m["name"] for m in container["volumeMounts"]} - {"cell-secret", "redis-secret"}
        assert {m["name"] for m in step["volumeMounts"]} == others


def test_the_user_s_steps_come_first_and_only_workers_are_looked_at() -> None:
    release = render({**EXTENDED, **STEP})
    names = {
        role: [each["name"] for each in pod["spec"].get("initContainers", [])]
        for role, pod in release.pods()
    }
    assert names.pop("prefill") == ["warm", "doctor"]
    assert names.pop("decode") == ["doctor"]
    assert not any(names.values())
    together = dict(render({**COLOCATED, **STEP}).pods())["colocated"]["spec"]["initContainers"]
    assert [each["name"] for each in together] == ["prefill-doctor", "decode-doctor"]


def run_step(step: Object, folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    args = step["args"]
    for reference, text in POD.items():
        args = [arg.replace(reference, text) for arg in args]
    return subprocess.run(  # noqa: S603 the chart's own command
        [sys.executable, "-m", "services.cli", *args, "--json=-", *flags],
        env={**os.environ, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_step_passes_where_a_worker_can_serve_and_fails_where_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    release = render({**STEP, "settings": {"maxModelLen": 512}})
    (step,) = [step for role, _, step in steps(release) if role == "decode"]
    any_port = ("--worker-port=0", "--probe-port=0")
    passed = run_step(step, tmp_path, *any_port)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    failed = run_step(step, tmp_path, *any_port, "--model=/models/gone")
    assert failed.returncode == 1
    lines = [json.loads(line) for line in failed.stdout.splitlines()]
    assert [line["check"] for line in lines if line["level"] == "FAIL"] == ["model"]


def job_of(release: Release) -> Object:
    (job,) = (o for o in release.of_kind("Job") if o["metadata"]["name"] == "rel-baton-doctor")
    found: Object = job
    return found


def test_the_job_runs_after_an_install_or_upgrade_and_its_log_stays() -> None:
    release = render(DOCTOR)
    job = job_of(release)
    assert job["metadata"]["annotations"] == {
        "helm.sh/hook": "post-install,post-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["activeDeadlineSeconds"] == 90
    assert "logs job/rel-baton-doctor" in release.notes
    assert "logs POD -c doctor" in release.notes
    assert "doctor" not in dict(render({}).pods())


@pytest.mark.parametrize("name", SETS)
def test_the_job_has_what_it_looks_with_and_no_more(name: str) -> None:
    release = render(SETS[name])
    (container,) = job_of(release)["spec"]["template"]["spec"]["containers"]
    service = release.named("Service", "rel-baton-gateway-admin")["spec"]
    (port,) = service["ports"]
    assert container["args"][1] == f"--url=http://rel-baton-gateway-admin:{port['port']}"
    assert service["publishNotReadyAddresses"] is True
    files = [item["name"] for item in container["env"] if item["name"].startswith("BATON_")]
    if name == "apart":
        assert files == ["BATON_CELL_SECRET_FILE", "BATON_REDIS_FILE"]
    else:
        assert files == ["BATON_CELL_SECRET_FILE"]
        assert "--redis=redis://redis.example:6379/0" in container["args"]
    assert "fieldRef" not in str(container)
    assert {"requests", "limits"} == set(container["resources"])
    assert not [o for o in release.of_kind("Role", "RoleBinding") if "doctor" in str(o)]


@pytest.fixture
async def gateway(tmp_path: Path, anyio_backend: str) -> AsyncIterator[ServedApp]:
    tokenizer = byte_level_tokenizer()
    async with serve_app(write_text_model(tmp_path, tokenizer), tokenizer) as served:
        yield served


@pytest.mark.anyio
async def test_the_job_waits_for_the_gateway_and_passes_or_fails(
    gateway: ServedApp, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"doctor": {"job": {"enabled": True, "waitS": 20}}}
    (container,) = job_of(render(values))["spec"]["template"]["spec"]["containers"]
    address = "http://rel-baton-gateway-admin:8001"
    args = [arg.replace(address, gateway.url) for arg in container["args"]]
    assert args != container["args"]
    run = [sys.executable, "-m", "services.cli", *args]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    gateway.door.num_unready = 2
    passed = await anyio.run_process(run, check=False, env=environment)
    assert passed.returncode == 0, passed.stdout
    gateway.door.is_ready = False
    failed = await anyio.run_process([*run, "--wait-s=0"], check=False, env=environment)
    assert failed.returncode == 1
    assert b"no decode worker is linked" in failed.stdout
