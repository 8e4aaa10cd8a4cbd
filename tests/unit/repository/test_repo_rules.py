"""Every rule of tests/rules can fail: each finds what is planted, and accepts what is clean."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pytest

from tests.rules import __main__ as program
from tests.rules import (
    budgets,
    loops,
    phrases,
    read_settings,
    sent_words,
    settings_budget,
    words,
)
from tests.rules.read_settings import GROUPS_FILE
from tests.rules.sources import Source, budgets_table, sources

LIMITS: dict[str, Any] = {
    "folder_files": 2,
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


def test_crowded_folder() -> None:
    two, other = [Source(f"shared/{name}.py", "") for name in "ab"], Source("shared/x/c.py", "")
    assert budgets.check([*two, other], LIMITS) == []
    crowded = [*two, other, Source("shared/c.py", "")]
    assert [str(item) for item in budgets.check(crowded, LIMITS)] == [
        "shared:1: folder_files: 3 Python files, at most 2"
    ]


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


def phrase_lines(text: str, path: str = "shared/x.py") -> list[int]:
    return [item.line for item in phrases.check([Source(path, text)])]


@pytest.mark.parametrize(
    ("planted", "innocent"),
    [
        ("A snapshot for wh{}o missed events.", "A snapshot for those who missed events."),
        ("It says wh{}o is dead.", "Nobody who dials is trusted."),
        ("Gone; wh{}o waits is told.", "What is told to clients, who wait."),
        ("Wh{}o dials proves first.", "Who dials first?"),
        ("Boxes of so{} many rows.", "So many rows that they fill the cache."),
        ("It starts a{}new.", "It starts a new one."),
        ("It waits for{} ever.", "It waits forever, for every rank."),
        ("A pool be{}side its engine.", "A pool besides its engine."),
    ],
)
def test_phrases_are_found_in_prose_only(planted: str, innocent: str) -> None:
    wrong = planted.format("")
    assert phrase_lines(f'"""{innocent}"""\nx = 1  # {innocent}\ny = """\n{innocent}"""') == []
    assert phrase_lines(f'"""M."""\n\nx = f"""{{y}}\n{wrong}"""\n# {wrong}\n') == [4, 5]
    assert phrase_lines(wrong, "shared/README.md") == [1]
    assert phrase_lines(innocent, "shared/README.md") == []


def test_a_phrase_over_two_lines_is_found_and_names_are_free() -> None:
    two_lines = "# it waits for" + "\n# ever\nx = 1\n"
    assert phrase_lines(two_lines) == [1]
    assert phrase_lines('Script.beside(so, many)\nwho = "beside"\nfor ever in x: who') == []


def test_the_program_reads_this_repository(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "RULES", (words.check,))
    assert program.main() == 0
    monkeypatch.setattr(program, "sources", lambda: [Source("shared/bad.py", "print('x')\n")])
    assert program.main() == 1
    assert "shared/bad.py:1: call: print()" in capsys.readouterr().err
    assert budgets_table()["max_exceptions"] == 10


@pytest.mark.parametrize(
    ("path", "text", "num_problems"),
    [
        ("services/gateway/x.py", "async def f():\n while True:\n  await g()", 1),
        ("services/gateway/x.py", "async def f():\n while 1:\n  await g()", 1),
        ("shared/worker/x.py", "async def f():\n while True:  # until it is read\n  g()", 0),
        ("shared/worker/x.py", "async def f():\n while not g():\n  await h()", 0),
        ("shared/worker/x.py", "def f():\n while True:\n  g()", 0),
        ("services/cli/bench/x.py", "async def f():\n while True:\n  await g()", 0),
    ],
)
def test_endless_loops_are_turns(path: str, text: str, num_problems: int) -> None:
    assert len(loops.check([Source(path, text)])) == num_problems


def test_no_service_has_an_endless_loop_of_its_own() -> None:
    assert loops.check(sources()) == []


@pytest.mark.parametrize(("number", "text"), [(3, "raise it where"), (1, "lower it")])
def test_the_number_of_settings_is_a_decision(number: int, text: str) -> None:
    assert settings_budget.check(2, 2) == []
    (problem,) = settings_budget.check(number, 2)
    assert text in problem.text


@dataclass
class KVSettings:
    blocks: int = 0


@dataclass
class NetworkSettings:
    host: str = ""


@dataclass
class SomeSettings:
    kv: KVSettings
    network: NetworkSettings


@pytest.mark.parametrize(
    ("path", "text", "unread"),
    [
        ("services/x.py", "settings.kv.blocks, settings.network.host", ""),
        ("shared/x.py", "self._settings.kv.blocks, plan.settings.network.host", ""),
        ("shared/x.py", "f(settings.network, settings.kv.blocks); self._network.host", ""),
        ("shared/x.py", "def f(kv: KVSettings): kv.blocks, settings.network.host", ""),
        ("shared/x.py", "def f(s: KVSettings): s.blocks, settings.network.host", ""),
        (GROUPS_FILE, "class KVSettings: f(self.blocks, settings.network.host)", ""),
        ("shared/x.py", "settings.kv.blocks = settings.network.host", "kv.blocks"),
        ("shared/x.py", "class KVSettings: f(self.blocks, settings.network.host)", "kv.blocks"),
        ("shared/x.py", "def f(kv: Pool): kv.blocks, settings.network.host", "kv.blocks"),
        ("shared/x.py", "settings.kv.blocks, settings.network, other.host", "network.host"),
    ],
)
def test_every_setting_is_read(path: str, text: str, unread: str) -> None:
    found = [item.text for item in read_settings.check([Source(path, text)], SomeSettings)]
    assert found == ([f"nothing reads the setting {unread!r}"] if unread else [])


def test_a_setting_that_only_tests_read_is_not_read() -> None:
    text = "settings.kv.blocks, settings.network.host"
    assert len(read_settings.check([Source("tests/unit/x.py", text)], SomeSettings)) == 2


class Held(NamedTuple):
    state: Literal["", "busy"]
    num_bytes: int = 0


@dataclass
class Refuse:
    reason: Literal["full", "gone"]
    held: tuple[Held, ...] = ()
    text: str = ""


SENT = """
refusal = Refuse("full", held, text="x")
held = Held("busy", 4)
reason = "gone"
"""


def unsent(
    text: str,
    path: str = "shared/worker/x.py",
    waiting: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> list[str]:
    return [item.text for item in sent_words.check([Source(path, text)], [Refuse], waiting)]


@pytest.mark.parametrize(
    ("line", "other", "problem"),
    [
        ('reason = "gone"', 'reason == "gone"', "nothing says 'gone' in Refuse.reason"),
        ('reason = "gone"', '"gone"', "nothing says 'gone' in Refuse.reason"),
        ('reason = "gone"', 'Reason = Literal["gone"]', "nothing says 'gone' in Refuse.reason"),
        ('reason = "gone"', 'return "gone"', ""),
        ('"busy"', "state", "nothing says 'busy' in Held.state"),
        ("held, ", "", "nothing fills Refuse.held"),
        (', text="x"', "", "nothing fills Refuse.text"),
        (', text="x")', '); replace(refusal, text="x")', ""),
        (", 4", "", "nothing fills Held.num_bytes"),
    ],
)
def test_what_a_message_can_say_is_said(line: str, other: str, problem: str) -> None:
    assert line in SENT
    assert unsent(SENT) == []
    assert unsent(SENT.replace(line, other)) == [problem][: bool(problem)]


def test_only_the_product_sends() -> None:
    for path in ("tests/x.py", "services/gateway/measure/x.py"):
        assert len(unsent(SENT, path)) == 6


def test_what_waits_for_its_sender_is_listed_and_no_longer_than_it_waits() -> None:
    waiting = {("Refuse", "gone"): "a later release"}
    assert unsent(SENT.replace('"gone"', "why"), waiting=waiting) == []
    assert unsent(SENT, waiting=waiting) == ["Refuse.gone waits no more"]
