"""What runs forever is a turn of `shared.loops`, which outlives its failures.

So `while True` in an async function of the services says on its line how it ends: `# until ...`.
In shared/transfer such a loop lives as long as one connection.
"""

import ast
import re
from collections.abc import Iterable, Iterator

from tests.rules.sources import Source, Violation

PLACES = (
    *("services/gateway/", "services/prefill/", "services/decode/"),
    *("services/cli/cluster/supervisor.py", "services/cli/cluster/child.py"),
    *("shared/link/", "shared/queue/", "shared/state/", "shared/telemetry/", "shared/worker/"),
)
ENDS = re.compile(r"#\s*until \w+")


def check(files: Iterable[Source]) -> list[Violation]:
    return [
        problem
        for source in files
        if source.path.startswith(PLACES)
        for problem in _endless(source)
    ]


def _endless(source: Source) -> Iterator[Violation]:
    lines = source.text.splitlines()
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if not (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):
                continue
            if not ENDS.search(lines[node.lineno - 1]):
                text = "an endless loop is a turn of shared.loops; another says '# until ...'"
                yield Violation(source.path, node.lineno, "loops", text)
