"""What a run of the tests did not exercise, and why: counted, named last, never silent.

What may be away: GPUs, a Redis newer than the bundled one, Prometheus' promtool, a Chromium, a C
compiler, and the right to mount or to make network namespaces. Any other skipped test fails the
run. `make test` is several runs: each adds its counts to the file that `SKIP_LEDGER` names, and
`python -m tests.support.skip_ledger FILE` says the sum.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

LEDGER = "SKIP_LEDGER"
GPU = "GPU"
PROMTOOL = "promtool"
CHROMIUM = "Chromium"
COMPILER = "C compiler"
MOUNTS = "mounts"
HOSTS = "network namespaces"
PACKAGES = {
    PROMTOOL: "prometheus",
    CHROMIUM: "chromium",
    COMPILER: "gcc libc6-dev",
    HOSTS: "iproute2",
}


class SkipLedger:
    """A pytest plugin."""

    def __init__(self) -> None:
        self._allowed: Counter[str] = Counter()
        self._others: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        names = [text for name, text in report.user_properties if name == LEDGER]
        if names:
            self._allowed[str(names[0])] += 1
        else:
            self._others.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._others.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._others and not hasattr(session.config, "workerinput"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if hasattr(config, "workerinput"):
            return
        for nodeid in self._others:
            sys.stdout.write(f"nothing that may be away is missing, yet skipped: {nodeid}\n")
        sys.stdout.write(sentence(self._allowed))
        if os.environ.get(LEDGER):
            with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as file:
                file.writelines(f"{count} {name}\n" for name, count in self._allowed.items())


def skip(item: pytest.Item, name: str, reason: str) -> None:
    """Skips a test for want of `name`, which the ledger counts."""
    item.user_properties.append((LEDGER, name))
    item.add_marker(pytest.mark.skip(reason=reason))


def sentence(counts: Counter[str]) -> str:
    said = [f"{name} ({count} tests)" for name, count in sorted(counts.items()) if count]
    cures = "".join(f"; for {what}: apt-get install {package}" for what, package in _cures(counts))
    return f"not exercised: {', '.join(said)}{cures}\n" if said else "nothing was skipped\n"


def _cures(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    if set(names) - {GPU, MOUNTS, *PACKAGES}:
        yield "Redis", "redis-server"
    yield from ((name, package) for name, package in PACKAGES.items() if name in names)


def main(path: str) -> int:
    counts: Counter[str] = Counter()
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        count, _, name = line.partition(" ")
        counts[name] += int(count)
    sys.stdout.write(sentence(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
