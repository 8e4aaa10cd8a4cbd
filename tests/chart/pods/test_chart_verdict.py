"""The chart's Job that compares two releases; its command line is run here."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import helm_python
import pytest

from tests.chart.release import Object, Release, render
from tests.chart.value_sets import VERDICT
from tests.support.fakes.scripted_endpoint import scripted

NAME = "rel-baton-verdict"
OTHER = "http://other:8000"
OWN = "http://rel-baton-gateway:8000"
ON: dict[str, Any] = {"verdict": {"enabled": True, "otherUrl": OTHER}}


def job_of(release: Release) -> Object:
    return release.named("Job", NAME)


def args_of(release: Release) -> list[str]:
    (container,) = job_of(release)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["baton"]
    args: list[str] = container["args"]
    return args


def test_it_is_off_unless_asked_for() -> None:
    assert "verdict" not in dict(render({}).pods())
    assert not [item for item in render({}).objects if item["metadata"]["name"] == NAME]


def test_it_is_a_test_of_helm_whose_log_stays() -> None:
    job = job_of(render(ON))
    assert job["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["activeDeadlineSeconds"] == 10800
    assert f"logs job/{NAME}" in render(ON).notes


def test_the_release_with_prefill_workers_is_pd() -> None:
    assert args_of(render(ON))[2:4] == [f"--url-pd={OWN}", f"--url-agg={OTHER}"]
    alone = {**ON, "prefill": {"enabled": False}, "settings": {"topology": "agg"}}
    assert args_of(render(alone))[2:4] == [f"--url-pd={OTHER}", f"--url-agg={OWN}"]


def test_it_needs_the_other_gateway() -> None:
    with pytest.raises(helm_python.HelmRenderError, match="otherUrl: the gateway of"):
        render({"verdict": {"enabled": True}})
    with pytest.raises(helm_python.HelmValuesError):
        render({"verdict": {"enabled": True, "otherUrl": "other:8000"}})


@pytest.mark.parametrize(
    ("url", "port"),
    [(OTHER, 8000), ("http://other", 80), ("https://other/v1", 443), ("http://o.ns:81/", 81)],
)
def test_its_policy_opens_the_port_of_the_other_gateway(url: str, port: int) -> None:
    release = render({"verdict": {"enabled": True, "otherUrl": url}})
    *_, other = release.named("NetworkPolicy", NAME)["spec"]["egress"]
    assert {item["port"] for item in other["ports"]} == {port, 8000}
    assert "to" not in other


def test_it_reads_the_key_for_tests_and_has_no_rights() -> None:
    release = render(VERDICT)
    args = args_of(release)
    assert "--api-key-file=/etc/baton/api-key/key" in args
    assert args[-2:] == ["--input=512-2048", "--seeds=5"]
    assert "api-key" not in str(job_of(render(ON)))
    assert not [o for o in release.of_kind("Role", "RoleBinding") if "verdict" in str(o)]


@pytest.mark.anyio
async def test_its_command_line_ends_with_a_verdict_and_the_file(tmp_path: Path) -> None:
    """Against gateways that answer at once: neither is worth a second pool."""
    quick = ["--input=8", "--output=2", "--vocab=1000", "--rate=40", "--duration=0.5", "--points=3"]
    values = {**ON, "verdict": {**ON["verdict"], "extraArgs": [*quick, "--max-lag-ms=1000"]}}
    with scripted(first_ms=1.0, per_1k_ms=2000.0) as own, scripted(first_ms=1.0) as other:
        urls = {OWN: own.port, OTHER: other.port}
        args = args_of(render(values))
        for url, port in urls.items():
            args = [arg.replace(url, f"http://127.0.0.1:{port}") for arg in args]
        run = [sys.executable, "-m", "services.cli", *args]
        done = await anyio.run_process(run, check=False, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode in (0, 3), done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["judgement"]["sentence"] in done.stderr.decode()
    assert {run["topology"] for run in verdict["runs"]} == {"pd", "agg"}
