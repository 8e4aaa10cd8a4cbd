"""Whether what a page names exists: files and what they define, commands, flags, metrics, targets.

Anything else that is written as code must stand in the product as it is: a path of the API, a
setting's value, a field, or the words of a message, an alert or a log line.
"""

import argparse
import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache

from services.cli.__main__ import COMMANDS, Parser
from services.cli.bench.command import BENCHMARKS
from shared.protocol import Load
from shared.settings.load import EVERY_SETTING
from shared.settings.setting import flag_name
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.worker_metrics import WorkerSample
from tests.rules.sources import ROOT

OTHERS = frozenset({"kubectl", "helm", "nvidia-smi", "pip", "curl", "nvcc", "ls", "ss"})
"""first words of commands that are not ours"""
PRODUCT = ("services", "shared", "kernels", "helm", "docker", "loadtest")
SUFFIXES = frozenset({".py", ".yaml", ".tpl", ".json", ".lua", ".html", ".txt", ".Dockerfile"})
PLACE = re.compile(r"[\w./-]+(?:/|\.(?:py|md|yaml|json|tpl|html|sh))(?::([\w.]+))?")
_FLAG = re.compile(r"--[a-z][\w-]*")


def unknown(span: str) -> str:
    """What is wrong with it; empty if it exists."""
    first, *others = span.split()
    if first in OTHERS:
        return ""
    if place := PLACE.fullmatch(span):
        return _missing_place(span, place[1])
    ours = {"baton": _missing_command, "make": _missing_targets}
    if first in ours:
        return ours[first](others)
    if _FLAG.match(span):
        missing = set(_FLAG.findall(span)) - _every_flag()
        return f"no flag {', '.join(sorted(missing))}" if missing else ""
    if span in _metrics() or span in _product():
        return ""
    return f"{span!r} stands nowhere in the product"


def _missing_place(span: str, name: str | None) -> str:
    path = ROOT / (span.partition(":")[0])
    if not path.exists():
        return f"{path.relative_to(ROOT)} does not exist"
    if name and name not in defined(path.read_text(encoding="utf-8")):
        return f"{span}: {name} is not defined there"
    return ""


def defined(code: str) -> set[str]:
    """Functions, classes, methods as Class.method and by their own name, and constants."""
    tree = ast.parse(code)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef))
            found |= {node.name} | {f"{node.name}.{item.name}" for item in methods}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    for item in tree.body:
        targets = item.targets if isinstance(item, ast.Assign) else []
        if isinstance(item, ast.AnnAssign):
            targets = [item.target]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _missing_command(words: list[str]) -> str:
    """`words`: what follows `baton`."""
    if not words or words[0] not in COMMANDS:
        return f"no command baton {' '.join(words[:1])}"
    name, *rest = words
    if name == "bench" and rest and not rest[0].startswith("-"):
        if rest[0] not in BENCHMARKS:
            return f"no benchmark {rest[0]}"
        name = f"bench.{rest[0]}"
    parser = _parser(name)
    options = set(_options(parser))
    known = {action.dest: action.choices for action in parser._actions}
    missing = [word for word in rest if _FLAG.fullmatch(word) and word not in options]
    if rest and re.fullmatch(r"[a-z]+", rest[0]) and name in ("serve", "autoscaler", "simulate"):
        choices = [name for each in known.values() if each for name in each]
        missing += [rest[0]] * (rest[0] not in choices)
    return f"baton {name} has no {', '.join(missing)}" if missing else ""


@cache
def _parser(name: str) -> argparse.ArgumentParser:
    """Of a command, or of `bench.NAME`."""
    if name.startswith("bench."):
        module = importlib.import_module(f"services.cli.{name}.command")
    else:
        try:
            module = importlib.import_module(f"services.cli.{name}")
            module.add_arguments  # noqa: B018  (a folder has it in its module `command`)
        except AttributeError:
            module = importlib.import_module(f"services.cli.{name}.command")
    parser = Parser(prog=f"baton {name}")
    module.add_arguments(parser)
    return parser


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Its flags, and those of what follows it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _options(each)


@cache
def _every_flag() -> frozenset[str]:
    names = [*COMMANDS, *(f"bench.{name}" for name in BENCHMARKS)]
    of_commands = {flag for name in names for flag in _options(_parser(name))}
    return frozenset(of_commands | {flag_name(setting.name) for setting in EVERY_SETTING})


def _missing_targets(words: list[str]) -> str:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [word for word in words if re.fullmatch(r"[a-z-]+", word)]
    missing = [word for word in targets if not re.search(rf"^{word}:", text, re.MULTILINE)]
    return f"no target {', '.join(missing)}" if missing or not targets else ""


@cache
def _metrics() -> frozenset[str]:
    load = Load(1, 0, 0, 0, 4, 4, 0, 0)
    sample = WorkerSample("d", "decode", load, {"steps": 1}, {"transfer": 1})
    text = GatewayMetrics(lambda: [sample]).text().decode()
    found = set(re.findall(r"^# TYPE (baton_\w+)", text, re.MULTILINE))
    return frozenset(found | {name.replace("baton_worker_", "baton_") for name in found})


@cache
def _product() -> str:
    """All that ships and is no page."""
    texts = [
        path.read_text(encoding="utf-8")
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    ]
    return "\n".join(texts)
