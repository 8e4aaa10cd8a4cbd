"""The distribution: its names are ours alone, its pins agree, its command is installed."""

import re
import tomllib
from collections import Counter
from importlib.metadata import distribution, entry_points, packages_distributions
from itertools import chain
from typing import Any

import pytest

from shared.release import DISTRIBUTION
from tests.rules.sources import ROOT

CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
CONTROL_PLANE_EXTRAS = ("gateway", "autoscaler")


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
        return table


def canonical(requirement: str) -> str:
    name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("package", ["services", "shared", "kernels"])
def test_package_names_belong_to_us_alone(package: str) -> None:
    """Hugging Face publishes a distribution named `kernels`; pip would merge the two."""
    assert set(packages_distributions()[package]) == {DISTRIBUTION}


def test_the_library_has_the_distribution_s_name() -> None:
    """So nobody else can publish a module of this name without taking ours."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules = tomllib.load(file)["tool"]["setuptools"]["py-modules"]
    assert modules == [DISTRIBUTION.replace("-", "_")]
    assert (ROOT / f"{modules[0]}.py").is_file()


def test_version_can_never_be_taken_for_the_other_kernels() -> None:
    """transformers looks at the version of whatever distribution owns `kernels`."""
    assert int(distribution(DISTRIBUTION).version.split(".")[0]) >= 2026
    assert "Private :: Do Not Upload" in project()["classifiers"]


def test_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="baton")
    assert script.value == "services.cli.__main__:main"


def test_constraints_are_exact_and_start_with_torch() -> None:
    assert CONSTRAINTS[:2] == ["torch==2.13.0", "triton==3.6.0"]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^\s=]+", line) for line in CONSTRAINTS)
    assert len({canonical(line) for line in CONSTRAINTS}) == len(CONSTRAINTS)


def test_every_dependency_is_a_range_here_and_exact_in_the_constraints() -> None:
    table = project()
    requirements = [*table["dependencies"], *chain(*table["optional-dependencies"].values())]
    pinned = {canonical(line) for line in CONSTRAINTS}
    assert {canonical(item) for item in requirements} <= pinned
    assert not [item for item in requirements if "==" in item.partition(";")[0]]


def test_control_plane_needs_no_torch() -> None:
    table = project()
    for extra in CONTROL_PLANE_EXTRAS:
        names = {canonical(item) for item in table["optional-dependencies"][extra]}
        assert not names & {"torch", "triton", "numpy", "safetensors", "transformers"}
    assert not {canonical(item) for item in table["dependencies"]} & {"torch", "triton"}


def test_transformers_is_a_test_dependency_only() -> None:
    extras = project()["optional-dependencies"]
    users = [name for name, items in extras.items() if "transformers" in map(canonical, items)]
    assert users == ["test"]


def test_each_test_module_has_a_name_of_its_own() -> None:
    """pytest takes two of one name for the same module, and runs neither."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
