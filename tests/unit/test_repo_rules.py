"""Every rule of tests/rules can fail: each finds what is planted, and accepts what is clean."""

from pathlib import Path
from typing import Any

import pytest

from tests.rules import budgets, loops, words
from tests.rules.sources import ROOT, Source, budgets_table, sources

LIMITS: dict[str, Any] = {
    "file_lines": 20,
    "function_lines": 5,
    "kernel_lines": 8,
    "parameters": 3,
    "max_exceptions": 1,
    "exceptions": [],
}


def function(num_lines: int, decorator: str = "") -> str:
    return f"{decorator}\ndef f():\n" + "    x = 1\n" * (num_lines - 1)


def budget_rules(text: str, path: str = "shared/x.py", **limits: object) -> list[str]:
    return [item.rule for item in budgets.check([Source(path, text)], {**LIMITS, **limits})]


def word_rules(text: str, path: str = "shared/x.py") -> list[str]:
    return [item.rule for item in words.check([Source(path, text)])]


def test_long_file() -> None:
    assert budget_rules("x = 1\n" * 20) == []
    assert budget_rules("x = 1\n" * 21) == ["file_lines"]


def test_long_function() -> None:
    assert budget_rules(function(5)) == []
    assert budget_rules(function(6)) == ["function_lines"]


@pytest.mark.parametrize("decorator", ["@triton.jit", "@triton.jit(noinline=True)"])
def test_kernels_have_a_budget_of_their_own(decorator: str) -> None:
    assert budget_rules(function(8, decorator)) == []
    assert budget_rules(function(9, decorator)) == ["kernel_lines"]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("def f(a, b, c): pass", []),
        ("def f(a, b, c, d): pass", ["parameters"]),
        ("def f(a, /, b, *, c, d): pass", ["parameters"]),
        ("class C:\n def f(self, a, b, c): pass", []),
        ("class C:\n async def f(self, a, b, c, d): pass", ["parameters"]),
    ],
)
def test_parameters(text: str, rules: list[str]) -> None:
    assert budget_rules(text) == rules
    assert budget_rules(text, "kernels/x.py") == []


@pytest.mark.parametrize("code", ["C901", "PLR0913", "E501, PLR0912"])
def test_limits_cannot_be_switched_off_in_place(code: str) -> None:
    line = f"def f(): pass  # {'noqa'}: {code}"
    assert budget_rules(line) == ["complexity"]


def test_exceptions_are_reasoned_needed_and_few() -> None:
    item = {"path": "shared/x.py", "name": "f", "rule": "function_lines", "reason": "a table"}
    assert budget_rules(function(6), exceptions=[item]) == []
    assert budget_rules(function(5), exceptions=[item]) == ["exceptions"]
    assert budget_rules(function(6), exceptions=[{**item, "reason": " "}]) == ["exceptions"]
    assert "exceptions" in budget_rules(function(6), exceptions=[item, item])


@pytest.mark.parametrize(
    "name", ["BlockManager", "json_utils", "HTTPHandler", "helper", "process_helpers"]
)
def test_empty_names(name: str) -> None:
    for text in (f"class {name}: pass", f"def {name}(): pass", f"{name} = 1"):
        assert word_rules(f'"""M."""\n{text}') == ["name"]
    assert word_rules('"""M."""', f"shared/{name}.py") == ["name"]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("def f(data): pass", ["name"]),
        ("info = 1", ["name"]),
        ("class P:\n def data_received(self, data): pass", []),
        ("class BasePool: pass", ["name"]),
        ("class PoolInterface: pass", ["name"]),
        ("class Baseline: pass", []),
        ("metadata = utility = manage = 1", []),
    ],
)
def test_vague_names(text: str, rules: list[str]) -> None:
    assert word_rules(f'"""M."""\n{text}') == rules


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("import pickle", "import"),
        ("from pickle import loads", "import"),
        ("torch.load('x')", "call"),
        ("yaml.load('x')", "call"),
        ("eval('x')", "call"),
        ("exec('x')", "call"),
        ("print('x')", "call"),
        ("# TO" + "DO later", "comment"),
    ],
)
def test_calls_and_comments(text: str, rule: str) -> None:
    assert word_rules(f'"""M."""\n{text}') == [rule]


def test_harmless_lookalikes() -> None:
    assert word_rules('"""M."""\nmodel.eval()\nyaml.safe_load("x")\nsafetensors.load("x")') == []


def test_packages_hold_a_docstring_only() -> None:
    path = "shared/x/__init__.py"
    assert word_rules("", path) == []
    assert word_rules('"""A package."""', path) == []
    assert word_rules("import os", path) == ["package"]
    assert word_rules('"""A package."""\nimport os', path) == ["package"]


def test_modules_need_a_docstring() -> None:
    assert word_rules("x = 1") == ["docstring"]


def test_the_programs_read_this_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "bad.py").write_text("print('x')\n")
    bad = Source("shared/bad.py", (tmp_path / "shared" / "bad.py").read_text())
    for program in (budgets, words):
        monkeypatch.setattr(program, "sources", lambda: [bad])
    assert words.main() == 1
    assert budgets.main() == 0
    assert (ROOT / "pyproject.toml").is_file()
    assert budgets_table()["max_exceptions"] == 10


@pytest.mark.parametrize(
    ("path", "text", "num_problems"),
    [
        ("services/gateway/x.py", "async def f():\n while True:\n  await g()", 1),
        ("services/gateway/x.py", "async def f():\n while 1:\n  await g()", 1),
        ("shared/worker/x.py", "async def f():\n while True:  # until it is read\n  g()", 0),
        ("shared/worker/x.py", "async def f():\n while not g():\n  await h()", 0),
        ("shared/worker/x.py", "def f():\n while True:\n  g()", 0),
        ("services/cli/bench_x.py", "async def f():\n while True:\n  await g()", 0),
    ],
)
def test_endless_loops_are_turns(path: str, text: str, num_problems: int) -> None:
    assert len(loops.check([Source(path, text)])) == num_problems


def test_no_service_has_an_endless_loop_of_its_own() -> None:
    assert loops.check(sources()) == []
