"""Every setting is read by the product: one that nothing reads is a promise nobody keeps."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import fields

from shared.settings.groups import Settings
from tests.rules.sources import Source, Violation

GROUPS_FILE = "shared/settings/groups.py"
PRODUCT = ("services/", "shared/", "kernels/")


def check(files: Iterable[Source], settings: type = Settings) -> list[Violation]:
    """Violations: fields of the groups of `settings` that no product code reads."""
    groups = [(item.name, item.type) for item in fields(settings)]
    product = [source for source in files if source.path.startswith(PRODUCT)]
    problems = []
    for name, group in groups:
        assert isinstance(group, type)
        read = {found for source in product for found in _read(source, name, group.__name__)}
        unread = [item.name for item in fields(group) if item.name not in read]
        problems += [f"nothing reads the setting '{name}.{item}'" for item in unread]
    return [Violation(GROUPS_FILE, 1, "settings", problem) for problem in problems]


def _read(source: Source, name: str, kind: str) -> Iterator[str]:
    """Attributes taken from `settings.NAME`; in a file that has that or names the group's class,
    also from what is called as the group or is a parameter of the class. In the groups' own file,
    from self."""
    if f"settings.{name}" not in source.text and kind not in source.text:
        return
    owners = {name, *_parameters(source.tree, kind)}
    if source.path == GROUPS_FILE:
        owners.add("self")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = ast.unparse(node.value).rpartition(".")[2].removeprefix("_")
            if owner in owners:
                yield node.attr


def _parameters(tree: ast.AST, kind: str) -> Iterator[str]:
    """Names of the parameters that are of that class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and ast.unparse(node).endswith(f": {kind}"):
            yield node.arg
