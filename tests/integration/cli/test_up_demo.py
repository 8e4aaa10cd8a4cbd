"""`baton demo` with stand-in children: the answer, the trace, and nothing left behind."""

import re
from pathlib import Path

import pytest

from services.cli.cluster.run_file import live_records
from tests.integration.cli.fake_baton import ANSWER
from tests.integration.cli.up_process import FakeBaton, alive


@pytest.mark.parametrize("redis_hidden", [False, True])
def test_demo_shows_an_answer_and_its_trace_and_leaves_nothing(
    tmp_path: Path, redis_hidden: bool
) -> None:
    """With redis-server hidden from PATH the bundled Redis serves."""
    environment = {"PATH": str(tmp_path)} if redis_hidden else {}
    result = FakeBaton(tmp_path).run("demo", "--prompt", "hello?", **environment)
    assert result.returncode == 0, result.stderr
    assert "> hello?" in result.stdout
    assert f"\n{ANSWER} \n" in result.stdout
    assert "request r1\n" in result.stdout
    rows = dict(re.findall(r"^(prefill|decode) +(\d+) ", result.stdout, re.MULTILINE))
    assert set(rows) == {"prefill", "decode"}
    assert not any(alive(int(pid)) for pid in rows.values())
    assert live_records(tmp_path / "run" / "baton") == []


def test_demo_that_fails_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    fake = FakeBaton(tmp_path)
    failures = '{"decode-0": [2, "baton: error: no such model"]}'
    result = fake.run("demo", FAKE_FAILURES=failures)
    assert (result.returncode, result.stderr) == (2, "baton: error: no such model\n")
    assert live_records(tmp_path / "run" / "baton") == []
