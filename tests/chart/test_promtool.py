"""A machine without promtool: its tests are named as not exercised, or are an error in CI."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.sources import ROOT

NEEDS_PROMTOOL = "tests/chart/test_chart_queries.py"


@pytest.mark.parametrize(("required", "code"), [("", 0), ("1", 4)])
def test_where_all_is_required_a_missing_one_is_an_error(
    tmp_path: Path, required: str, code: int
) -> None:
    result = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "wrong", NEEDS_PROMTOOL],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "REQUIRE_PROMTOOL": required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    if required:
        assert "there is no promtool here" in result.stderr
    else:
        last = result.stdout.splitlines()[-1]
        assert "not exercised: promtool (" in last
        assert last.endswith("for promtool: apt-get install prometheus")
