"""Words and calls that have no place here.

Names: say the noun (pool, index, registry), not that something manages or helps. Calls: nothing
that runs code out of bytes, no print in a service. Comments: no promises for later.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from tests.rules.sources import Source, Violation

BANNED_WORDS = frozenset({"manager", "handler", "processor", "helper", "util", "misc", "bootstrap"})
VAGUE_NAMES = frozenset({"info", "data"})
"""words that say nothing when they are the whole name"""

BANNED_IMPORTS = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"})
BANNED_CALLS = frozenset({"eval", "exec", "print", "torch.load", "yaml.load", "input"})
LATER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def check(files: Iterable[Source]) -> list[Violation]:
    return [problem for source in files for problem in _check_file(source)]


def _check_file(source: Source) -> Iterator[Violation]:
    tree = source.tree
    stem = PurePosixPath(source.path).stem
    names = [(1, stem), *_defined_names(tree)]
    for line, name in names:
        reason = _banned_name(name)
        if reason:
            yield Violation(source.path, line, "name", reason)
    for node in ast.walk(tree):
        yield from _check_class_name(source, node)
        yield from _check_import(source, node)
        yield from _check_call(source, node)
    yield from _check_comments(source)
    yield from _check_module(source, tree)


def _defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of every class, function, parameter and variable the file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
            yield from _parameters(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def _parameters(node: ast.stmt) -> Iterator[tuple[int, str]]:
    """Parameters, but not those of a method whose names asyncio fixed."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "data_received":
        for item in ast.walk(node.args):
            if isinstance(item, ast.arg):
                yield item.lineno, item.arg


def _banned_name(name: str) -> str:
    words = [word.lower() for word in _WORD.findall(name)]
    for word in words:
        if word.removesuffix("s") in BANNED_WORDS:
            return f"{name!r} says {word!r}"
    if name in VAGUE_NAMES:
        return f"{name!r} says nothing"
    return ""


def _check_class_name(source: Source, node: ast.AST) -> Iterator[Violation]:
    if isinstance(node, ast.ClassDef) and re.match(r"Base[A-Z]|.*Interface$", node.name):
        text = f"{node.name}: name it by its role"
        yield Violation(source.path, node.lineno, "name", text)


def _check_import(source: Source, node: ast.AST) -> Iterator[Violation]:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return
    named = [alias.name for alias in node.names]
    modules = named if isinstance(node, ast.Import) else [node.module or ""]
    for module in modules:
        if module.partition(".")[0] in BANNED_IMPORTS:
            yield Violation(source.path, node.lineno, "import", f"{module} runs code from bytes")


def _check_call(source: Source, node: ast.AST) -> Iterator[Violation]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in BANNED_CALLS:
        yield Violation(source.path, node.lineno, "call", f"{ast.unparse(node.func)}()")


def _check_comments(source: Source) -> Iterator[Violation]:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and LATER.search(token.string):
            yield Violation(source.path, token.start[0], "comment", token.string)


def _check_module(source: Source, tree: ast.Module) -> Iterator[Violation]:
    docstring = ast.get_docstring(tree)
    if source.path.endswith("/__init__.py"):
        if len(tree.body) > (docstring is not None):
            yield Violation(source.path, 1, "package", "holds more than a docstring")
    elif docstring is None:
        yield Violation(source.path, 1, "docstring", "the module has none")
