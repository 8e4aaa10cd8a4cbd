"""Size budgets: files of a folder, lines of a file and a function, parameters; complexity is
ruff's (C90).

`[tool.baton.budgets]` in pyproject.toml holds the limits and the one list of exceptions, each
`{path, name, rule, reason}`. An exception nothing needs any more is itself a violation, and so
is a `noqa` of ruff's own limits that the list does not know.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.rules.sources import (
    Source,
    Violation,
    budgets_table,
    functions,
    is_kernel,
)

LIMIT_NOQA = re.compile(r"#\s*noqa:[^#]*\b(C901|PLR09\d\d)\b")
FIELDS = {"path", "name", "rule", "reason"}


def check(files: Iterable[Source], limits: Mapping[str, Any] | None = None) -> list[Violation]:
    """Violations that no exception covers, of the limits in pyproject.toml."""
    limits = limits or budgets_table()
    exceptions = limits["exceptions"]
    problems = _malformed(exceptions, limits["max_exceptions"])
    allowed = {(item.get("path"), item.get("name"), item.get("rule")) for item in exceptions}
    used = set()
    files = list(files)
    problems += _crowded_folders(files, limits["folder_files"])
    for source in files:
        for name, violation in _measure(source, limits):
            key = (source.path, name, violation.rule)
            if key in allowed:
                used.add(key)
            else:
                problems.append(violation)
    problems += [
        Violation("pyproject.toml", 1, "exceptions", f"{key} is not needed any more")
        for key in sorted(allowed - used, key=str)
    ]
    return problems


def _crowded_folders(files: Iterable[Source], most: int) -> list[Violation]:
    """No exception covers a folder: a flat hall of files is cut into rooms."""
    counts = Counter(source.path.rpartition("/")[0] for source in files)
    return [
        Violation(folder, 1, "folder_files", f"{count} Python files, at most {most}")
        for folder, count in sorted(counts.items())
        if count > most
    ]


def _malformed(exceptions: list[dict[str, str]], most: int) -> list[Violation]:
    problems = [
        Violation("pyproject.toml", 1, "exceptions", f"{item} needs {sorted(FIELDS)}")
        for item in exceptions
        if set(item) != FIELDS or not item["reason"].strip()
    ]
    if len(exceptions) > most:
        text = f"{len(exceptions)} exceptions, at most {most}"
        problems.append(Violation("pyproject.toml", 1, "exceptions", text))
    return problems


def _measure(source: Source, limits: Mapping[str, Any]) -> Iterator[tuple[str, Violation]]:
    """(name, violation) of everything over its budget."""
    lines = source.text.splitlines()
    if len(lines) > limits["file_lines"]:
        text = f"{len(lines)} lines, at most {limits['file_lines']}"
        yield "", Violation(source.path, 1, "file_lines", text)
    for number, line in enumerate(lines, start=1):
        if LIMIT_NOQA.search(line):
            text = "a limit is switched off here and not in the list of exceptions"
            yield line.split("#")[0].strip(), Violation(source.path, number, "complexity", text)
    for function in functions(source.tree):
        yield from _measure_function(source, function, limits)


def _measure_function(
    source: Source,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    limits: Mapping[str, Any],
) -> Iterator[tuple[str, Violation]]:
    kernel = is_kernel(function)
    rule = "kernel_lines" if kernel else "function_lines"
    assert function.end_lineno is not None
    num_lines = function.end_lineno - function.lineno + 1
    if num_lines > limits[rule]:
        text = f"{function.name} has {num_lines} lines, at most {limits[rule]}"
        yield function.name, Violation(source.path, function.lineno, rule, text)
    num_parameters = _num_parameters(function)
    if num_parameters > limits["parameters"] and not kernel and source.folder != "kernels":
        text = f"{function.name} has {num_parameters} parameters, at most {limits['parameters']}"
        yield function.name, Violation(source.path, function.lineno, "parameters", text)


def _num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without self and cls."""
    arguments = function.args
    names = [item.arg for item in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
    return len(names) - (names[:1] in (["self"], ["cls"]))
