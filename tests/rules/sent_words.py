"""What a message can say, somebody says: every literal of its fields, and every optional field.

A text counts as said where product code has it anywhere but in a comparison; a field as filled
where it is an argument. WAITING lists what has no sender yet.
"""

import ast
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal

from shared import protocol
from tests.rules.sources import Source, Violation

PROTOCOL_FILE = "shared/protocol.py"
SENDERS = (
    *("services/gateway/", "services/prefill/", "services/decode/"),
    *("shared/engine/", "shared/link/", "shared/transfer/", "shared/worker/"),
)
MEASURES = "services/gateway/measure/"
"""plays the worker"""
MESSAGES: tuple[type, ...] = typing.get_args(protocol.Message)
WAITING: Mapping[tuple[str, str], str] = {}
"""(message, field or literal) -> what will send it"""


def check(
    files: Iterable[Source],
    messages: Iterable[type] = MESSAGES,
    waiting: Mapping[tuple[str, str], str] = WAITING,
) -> list[Violation]:
    """Violations: literals and optional fields without a sender, and exceptions without need."""
    trees = [
        source.tree
        for source in files
        if source.path.startswith(SENDERS) and not source.path.startswith(MEASURES)
    ]
    said = {text for tree in trees for text in _texts(tree)}
    given = {argument for tree in trees for argument in _arguments(tree)}
    unsent = {}
    for kind in with_parts(messages):
        for at, name in _optional_fields(kind):
            if not given & {(kind.__name__, name), (kind.__name__, at), ("replace", name)}:
                unsent[kind.__name__, name] = f"nothing fills {kind.__name__}.{name}"
        for name, text in _literals(kind):
            if text not in said:
                unsent[kind.__name__, text] = f"nothing says {text!r} in {kind.__name__}.{name}"
    problems = [text for key, text in unsent.items() if key not in waiting]
    problems += [f"{'.'.join(key)} waits no more" for key in waiting if key not in unsent]
    return [Violation(PROTOCOL_FILE, 1, "messages", text) for text in problems]


def with_parts(messages: Iterable[type]) -> list[type]:
    """The messages and the dataclasses and named tuples in their fields."""
    found: dict[type, None] = {}
    left = list(messages)
    while left:
        kind = left.pop()
        if kind not in found and hasattr(kind, "__annotations__"):
            found[kind] = None
            for hint in typing.get_type_hints(kind).values():
                left += _parts(hint)
    return list(found)


def _parts(hint: Any) -> Iterator[Any]:
    """A type hint and all that it is made of."""
    yield hint
    for inner in typing.get_args(hint):
        yield from _parts(inner)


def _optional_fields(kind: Any) -> Iterator[tuple[int, str]]:
    """(position, name) of those with a default."""
    if is_dataclass(kind):
        for at, item in enumerate(fields(kind)):
            if item.default is not MISSING or item.default_factory is not MISSING:
                yield at, item.name
    else:
        yield from ((kind._fields.index(name), name) for name in kind._field_defaults)


def _literals(kind: type) -> Iterator[tuple[str, str]]:
    """(field, text) of the fields that are one of some texts; the empty one says nothing."""
    for name, hint in typing.get_type_hints(kind).items():
        for part in _parts(hint):
            if typing.get_origin(part) is Literal:
                yield from ((name, text) for text in typing.get_args(part) if text)


def _texts(tree: ast.AST) -> Iterator[str]:
    """Strings outside comparisons, literal types and docstrings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif not (
            isinstance(node, ast.Compare | ast.MatchValue)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal")
        ):
            yield from _texts(node)


def _arguments(tree: ast.AST) -> Iterator[tuple[str, str | int]]:
    """(what is called, name or position) of every argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            yield from ((called, item.arg) for item in node.keywords if item.arg)
            yield from ((called, at) for at in range(len(node.args)))
