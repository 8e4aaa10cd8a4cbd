"""The wheel holds what Baton needs, and runs where there is no checkout.

Guarded against: a file that is read at run time and not packed, which nobody who works in a
checkout ever misses.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rules.sources import ROOT

PACKAGES = ("services", "shared", "kernels")
BUILT_FROM = (*PACKAGES, "baton_pd.py", "pyproject.toml", "README.md", "LICENSE")
FOR_READERS = {".md"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a copy of the sources: a build leaves files next to them."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, source], check=True)  # noqa: S603
    (built,) = folder.glob("*.whl")
    return built


def test_every_file_that_is_not_for_readers_is_in_the_wheel(wheel: Path) -> None:
    there = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in FOR_READERS and "__pycache__" not in path.parts
    }
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {*there, "baton_pd.py"} - packed == set()


@pytest.fixture
def run(wheel: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs Python in a folder of its own with the unpacked wheel first on its path."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "XDG_RUNTIME_DIR": str(tmp_path)}

    def run(*arguments: str) -> str:
        done = subprocess.run(  # noqa: S603
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    modules = (*PACKAGES, "baton_pd")
    places = run("-c", f"import {', '.join(modules)}; print({', '.join(modules)})")
    assert places.count(str(site)) == len(modules), "the checkout hides the wheel"
    return run


def test_an_answer_comes_from_an_unpacked_wheel(run: Callable[..., str]) -> None:
    assert "decode" in run("-m", "services.cli", "demo")


def test_the_library_answers_from_an_unpacked_wheel(run: Callable[..., str]) -> None:
    code = (
        "from baton_pd import LLM, SamplingParams\n"
        "with LLM(device='cpu', max_model_len=128) as llm:\n"
        "    print(llm.generate('Once', SamplingParams(max_tokens=4, ignore_eos=True))[0])"
    )
    assert "finish_reason='length'" in run("-c", code)
