"""A newcomer can draw the rooms of a large folder: few arrows between them, and none in a circle.

A room is a folder or a file directly inside; an arrow is at least one import, also one within a
function.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.rules.sources import ROOT


def arrows(root: Path, folder: str) -> dict[str, set[str]]:
    """Room -> the rooms it imports."""
    package = folder.replace("/", ".") + "."
    found: dict[str, set[str]] = {}
    for path in (root / folder).rglob("*.py"):
        room = path.relative_to(root / folder).with_suffix("").parts[0]
        others = found.setdefault(room, set())
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            if name.startswith(package):
                others.add(name.removeprefix(package).partition(".")[0])
        others.discard(room)
    return found


def imported(tree: ast.Module) -> set[str]:
    """Names of modules, and of what is taken out of them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize(("folder", "most"), [("shared/engine", 30), ("kernels", 12)])
def test_rooms_stand_on_each_other_with_few_arrows(folder: str, most: int) -> None:
    rooms = arrows(ROOT, folder)
    assert sum(map(len, rooms.values())) <= most
    tuple(TopologicalSorter(rooms).static_order())  # CycleError names the circle


def test_a_circle_through_a_function_is_seen(tmp_path: Path) -> None:
    (tmp_path / "house" / "cellar").mkdir(parents=True)
    (tmp_path / "house" / "attic.py").write_text("from house.cellar import wine\n")
    wine = "def pour():\n    from house import attic\n    attic.dust()\n"
    (tmp_path / "house" / "cellar" / "wine.py").write_text(wine)
    rooms = arrows(tmp_path, "house")
    assert rooms == {"attic": {"cellar"}, "cellar": {"attic"}}
    with pytest.raises(CycleError):
        tuple(TopologicalSorter(rooms).static_order())
