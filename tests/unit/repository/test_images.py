"""What docker/ says is what this repository has: files, extras, settings, ports.

`make image-test` builds the images; these checks need no builder, and catch what would break a
build or a start.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from services.cli.flags import given_settings
from services.cli.serve import add_arguments
from shared.settings.groups import Settings
from shared.settings.load import load_settings

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
EXTRAS = ("gateway", "autoscaler")
"""of the autoscaler's image"""
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CELL_SECRET = "/cell/secret"  # noqa: S105 a path
DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")


def instructions(path: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, rest), continued lines joined, comments left out."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def compose() -> dict[str, Any]:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(DEFAULT.sub(r"\1", text))
    return content


def baton_services() -> dict[str, dict[str, Any]]:
    services = compose()["services"].items()
    return {name: service for name, service in services if "serve" in service.get("command", ())}


def settings_of(service: dict[str, Any]) -> Settings:
    """As the container's process loads them."""
    parser = argparse.ArgumentParser()
    command, *rest = service["command"]
    assert command == "serve"
    add_arguments(parser)
    environment = {**service["environment"]}
    assert environment.pop("BATON_CELL_SECRET_FILE") == CELL_SECRET
    return load_settings(given_settings(parser.parse_args(rest)), environment)


def make_secret(cell: Path) -> str:
    """What the one-shot service leaves in the volume, which is `cell` here."""
    program, *arguments = compose()["services"]["cell"]["entrypoint"]
    assert (program, arguments[0]) == ("python", "-c")
    script = arguments[1].replace("/cell/", f"{cell}/")
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 compose's own command
    return (cell / "secret").read_text(encoding="utf-8")


def extras_in(path: Path) -> list[str]:
    """What an image is built with, unless it is told otherwise."""
    text = path.read_text(encoding="utf-8")
    installed: str
    (installed,) = re.findall(r"""['"]\.\[([\w,${}]+)\]['"]""", text)
    named = re.fullmatch(r"\$\{(\w+)\}", installed)
    if named:
        (installed,) = re.findall(rf"^ARG {named[1]}=(\S+)$", text, re.MULTILINE)
    return installed.split(",")


def test_the_autoscaler_s_image_has_what_it_needs_and_the_control_image_has_no_client() -> None:
    assert extras_in(DOCKER / "control.Dockerfile") == ["gateway"]
    assert "EXTRAS=gateway,autoscaler" in (DOCKER / "README.md").read_text(encoding="utf-8")
    gateway, autoscaler = (PROJECT["optional-dependencies"][name] for name in EXTRAS)
    assert not any(name.startswith("kubernetes") for name in gateway)
    assert any(name.startswith("kubernetes") for name in autoscaler)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_copies_what_exists_and_installs_known_extras(path: Path) -> None:
    steps = instructions(path)
    for instruction, rest in steps:
        if instruction == "COPY" and "--from" not in rest:
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    assert set(extras_in(path)) <= set(PROJECT["optional-dependencies"])
    copied = [rest.split()[0] for name, rest in steps if name == "COPY"]
    assert {"services", "shared", "kernels"} <= set(copied)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_baton_itself_as_nobody_special(path: Path) -> None:
    """No shell stands between SIGTERM and the process; the base is pinned to a version."""
    last = dict(instructions(path))
    assert last["ENTRYPOINT"] == '["baton"]'
    assert re.fullmatch(r"\d{4,}:\d{4,}", last["USER"])
    bases = [rest.split()[0] for name, rest in instructions(path) if name == "FROM"]
    assert bases == ["${BASE}", "dependencies", "dependencies"]
    given = [
        rest for name, rest in instructions(path) if name == "ARG" and rest.startswith("BASE=")
    ]
    assert all(re.fullmatch(r"BASE=python:3\.\d+-slim", base) for base in given)
    assert len(given) == 1


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_change_of_a_source_installs_no_dependency_again(path: Path) -> None:
    steps = instructions(path)
    first_source = steps.index(("COPY", "services services"))
    installed = [
        rest for name, rest in steps[first_source:] if name == "RUN" and "pip install" in rest
    ]
    assert len(installed) == 1
    assert "--no-deps" in installed[0]
    assert ("COPY", "--from=project /opt/project /opt/baton") in steps, "a layer of its own"


def test_the_control_image_has_no_torch() -> None:
    wanted = [*PROJECT["dependencies"]]
    for extra in (*extras_in(DOCKER / "control.Dockerfile"), *EXTRAS):
        wanted += PROJECT["optional-dependencies"][extra]
    assert not [name for name in wanted if re.match(r"torch|triton|transformers", name)]


def test_an_engine_image_has_the_triton_of_its_torch_alone() -> None:
    engine = PROJECT["optional-dependencies"]["engine"]
    assert not [name for name in engine if name.startswith("triton")]
    (pinned,) = [
        rest for name, rest in instructions(DOCKER / "engine.Dockerfile") if "grep" in rest
    ]
    assert "grep -v '^triton=='" in pinned


def test_compiled_kernels_can_be_loaded_and_outlive_a_container() -> None:
    """A tmpfs of Docker's is mounted noexec."""
    for name in ("prefill", "decode"):
        service = compose()["services"][name]
        assert "kernels:/home/baton/.triton" in service["volumes"]
        assert not [path for path in service["tmpfs"] if path.startswith("/home/baton/.triton")]
    made = [rest for name, rest in instructions(DOCKER / "engine.Dockerfile") if name == "RUN"]
    assert any(rest.endswith("--owner=baton --group=baton /home/baton/.triton") for rest in made)


def test_on_gpus_each_worker_has_its_own() -> None:
    text = (DOCKER / "compose.gpu.yaml").read_text(encoding="utf-8")
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    assert set(services) == {"prefill", "decode"} <= set(compose()["services"])
    devices = [
        service["deploy"]["resources"]["reservations"]["devices"][0]
        for service in services.values()
    ]
    assert len({tuple(device["device_ids"]) for device in devices}) == 2
    assert all(device["capabilities"] == ["gpu"] for device in devices)
    for service in services.values():
        assert load_settings({}, service["environment"]).compute.device == "cuda"


def test_compose_starts_every_part_with_settings_that_load() -> None:
    services = baton_services()
    roles = {service["command"][1]: settings_of(service) for service in services.values()}
    assert set(roles) == {"gateway", "prefill", "decode"}
    alike = {(s.model.name, s.cell.redis, s.kv.block_size, s.kv.secret) for s in roles.values()}
    assert len(alike) == 1
    assert urlsplit(roles["gateway"].cell.redis).hostname in compose()["services"]


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_workers_are_found_where_they_listen(name: str) -> None:
    service = baton_services()[name]
    settings = settings_of(service)
    assert settings.worker.advertise == f"{name}:{settings.worker.port}"
    assert settings.worker.transfer_advertise == f"{name}:{settings.worker.transfer_port}"
    probe = f"127.0.0.1:{settings.worker.probe_port}/ready"
    assert probe in shlex.join(service["healthcheck"]["test"])


def test_one_secret_is_made_once_for_all_processes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, again, other = map(make_secret, (tmp_path / "a", tmp_path / "a", tmp_path / "b"))
    assert first == again != other
    assert len(first) >= 43
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["secret"]
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o077 == 0
    assert compose()["services"]["cell"]["volumes"] == ["cell:/cell"]
    for service in baton_services().values():
        assert "cell:/cell:ro" in service["volumes"]
        assert service["depends_on"]["cell"] == {"condition": "service_completed_successfully"}
    (created,) = [
        rest for _, rest in instructions(DOCKER / "control.Dockerfile") if "/cell" in rest
    ]
    assert "--owner=baton" in created, "a fresh volume takes its owner from the image's folder"
    assert created.endswith("/cell")


def test_containers_are_confined_and_have_time_to_drain() -> None:
    for name, service in compose()["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        assert set(service.get("depends_on", ())) <= set(compose()["services"])
    for service in baton_services().values():
        drain_s = settings_of(service).limits.drain_s
        assert int(service["stop_grace_period"].removesuffix("s")) > drain_s
    published = [port for s in compose()["services"].values() for port in s.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
