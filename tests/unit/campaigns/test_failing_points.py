"""Places where a process dies: in the product they exist, and whoever comes there dies once.

Guarded against: a method that is renamed and a campaign that no longer kills anybody there, and a
process that dies unasked.
"""

import importlib
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.failpoints import FOLDER, PLACES

TOY = """
import asyncio

class Toy:
    def step(self):
        print("stepped", flush=True)
        return 7

    async def wait(self):
        await asyncio.sleep(0)
        print("waited", flush=True)
        return 8
"""
USE = "import asyncio, toy; t = toy.Toy(); print(t.step(), asyncio.run(t.wait()), flush=True)"
TOY_PLACES = (
    "toy:Toy.step before",
    "toy:Toy.step after",
    "toy:Toy.wait before",
    "toy:Toy.wait after",
)
WORDS = "stepped waited 7 8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "places").write_text("\n".join(TOY_PLACES))
    return tmp_path


def use_toy(folder: Path) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join((str(FOLDER), str(folder)))
    environment = {**os.environ, "FAILPOINTS": str(folder), "PYTHONPATH": path}
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", USE], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_place_is_a_method_of_the_product(place: str) -> None:
    where, when = place.split()
    module, _, path = where.partition(":")
    owner, _, name = path.partition(".")
    method = inspect.getattr_static(getattr(importlib.import_module(module), owner), name)
    assert inspect.isfunction(method)
    assert when in ("before", "after")


def test_nobody_dies_where_no_place_is_armed(folder: Path) -> None:
    ended = use_toy(folder)
    assert (ended.returncode, ended.stdout.split()) == (0, WORDS.split())


@pytest.mark.parametrize(
    ("number", "said"), [(0, ""), (1, "stepped"), (2, "stepped"), (3, "stepped waited")]
)
def test_who_comes_to_an_armed_place_dies_there_and_the_next_one_does_not(
    folder: Path, number: int, said: str
) -> None:
    (folder / str(number)).touch()
    first, second = use_toy(folder), use_toy(folder)
    assert (first.returncode, first.stdout.split()) == (-signal.SIGKILL, said.split())
    assert (second.returncode, second.stdout.split()) == (0, WORDS.split())
    (left,) = folder.glob(f"{number}.*")
    assert left.suffix[1:].isdigit()
