"""The make targets: a second install calls no pip, nothing calls apt or sudo, help is default."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rules.sources import ROOT

FILES = ("Makefile", "pyproject.toml", "constraints.txt")
OUTER_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "TORCH_INDEX")
"""what a `make test` around this test would hand on"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def make(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in OUTER_MAKE}
    return subprocess.run(  # noqa: S603
        ["make", *arguments],  # noqa: S607
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def dry_run(checkout: Path, *arguments: str) -> str:
    return make(checkout, "--dry-run", *arguments)


def finish_install(checkout: Path, torch_index: str = "") -> None:
    """Leaves what a finished `make install` leaves."""
    (checkout / ".venv" / ".torch-index").write_text(f"{torch_index}\n")
    found = re.search(r"touch (\S+)", dry_run(checkout, "install"))
    assert found
    (checkout / found[1]).touch()


def test_second_install_calls_no_pip(checkout: Path) -> None:
    assert "pip install" in dry_run(checkout, "install")
    finish_install(checkout)
    for target in ("install", "demo", "test"):
        assert "pip" not in dry_run(checkout, target)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_install_again(checkout: Path, name: str) -> None:
    finish_install(checkout)
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    assert "pip install" in dry_run(checkout, "install")


def test_another_torch_build_is_asked_for_once_and_remembered(checkout: Path) -> None:
    finish_install(checkout)
    assert "--extra-index-url http://index" in dry_run(
        checkout, "install", "TORCH_INDEX=http://index"
    )
    finish_install(checkout, "http://index")
    assert "pip" not in dry_run(checkout, "demo")


def test_nothing_runs_apt_or_sudo(checkout: Path) -> None:
    commands = dry_run(checkout, "install", "demo", "test", "format")
    said = re.sub(r'echo ".*"', "", commands)
    assert not re.search(r"\b(apt|apt-get|sudo)\b", said)


def test_load_without_a_gateway_names_its_own_variable(checkout: Path) -> None:
    finish_install(checkout)
    program = checkout / ".venv" / "bin" / "baton"
    program.parent.mkdir()
    said = "baton: error: none; running here: http://x (name it with --url or BATON_URL)"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 4\n")
    program.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        make(checkout, "load", "URL=http://127.0.0.1:9")
    assert "running here: http://x (name it with URL=...)" in failed.value.stderr


def test_help_is_the_default_and_lists_the_targets() -> None:
    listed = make(ROOT)
    for target in ("install", "demo", "check", "test", "format", "clean"):
        assert f"make {target} " in listed
    texts = [re.fullmatch(r"(make \S+ +)\S.*", line) for line in listed.splitlines()]
    assert len({len(text[1]) for text in texts if text}) == 1


def test_kind_test_says_what_is_missing(tmp_path: Path) -> None:
    script = str(ROOT / "tests" / "kube" / "in_kind.sh")
    done = subprocess.run(  # noqa: S603
        ["/bin/sh", script, "true"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = "baton: error: kind-test needs Docker and kind; missing: docker kind\n"
    assert (done.returncode, done.stderr) == (3, said)
