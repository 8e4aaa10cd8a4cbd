"""The digest kernel that a start compiles is the one that the mover launches, of every rank."""

import json
import os
import subprocess
import sys

from tests.rules.sources import ROOT


def test_a_start_compiles_the_digests_of_every_rank() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.loading.digest_launches"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(lines) == 7
    for line in lines:
        assert len(line["listed"]) == 1, line
        assert line["launched"] == line["listed"], line
    by_size = [{line["listed"][0] for line in lines if line["size"] == size} for size in (1, 2, 4)]
    assert [len(keys) for keys in by_size] == [1, 1, 1], "ranks have one kernel"
    assert len(set.union(*by_size)) == 3
