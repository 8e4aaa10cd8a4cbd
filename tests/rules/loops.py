"""What runs for ever is a turn of `shared.loops`, which outlives its failures.

So `while True` in an async function of the services says on its line how it ends: `# until ...`.
In shared/transfer such a loop lives as long as one connection.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator

from tests.rules.sources import Source, Violation, sources

PLACES = (
    *("services/gateway/", "services/prefill/", "services/decode/"),
    *("services/cli/supervisor.py", "services/cli/child.py"),
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
                text = "a loop for ever is a turn of shared.loops; another says '# until ...'"
                yield Violation(source.path, node.lineno, "loops", text)


def main() -> int:
    problems = check(sources())
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
