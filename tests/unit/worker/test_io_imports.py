"""A worker's io process starts in a fraction of a second: torch is its engine process's."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_io_process_does_not_import_torch(role: str) -> None:
    code = f"import sys, services.{role}.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
