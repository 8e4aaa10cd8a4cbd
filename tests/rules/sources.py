"""The Python files the rules look at, and what a broken rule looks like."""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("services", "shared", "kernels", "tests", "loadtest")


@dataclass(frozen=True)
class Violation:
    """One broken rule at one place."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@dataclass(frozen=True)
class Source:
    """One parsed file; `path` is relative to the repository root, with slashes."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def folder(self) -> str:
        return self.path.partition("/")[0]


def sources(root: Path = ROOT) -> Iterator[Source]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def budgets_table(root: Path = ROOT) -> dict[str, Any]:
    """`[tool.baton.budgets]` of pyproject.toml."""
    with (root / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["tool"]["baton"]["budgets"]
        return table


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Decorated with triton.jit or gluon.jit, called or not."""
    for decorator in function.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(target) in ("triton.jit", "gluon.jit"):
            return True
    return False
