"""The Kubernetes client is loaded to connect and for nothing else."""

import subprocess
import sys

from tests.rules.sources import ROOT

IMPORT_ALL = """
import sys
from tests.rules.blocked_imports import block, modules
block(("kubernetes", "urllib3"))
import importlib
names = list(modules(["services.autoscaler"]))
for name in names:
    importlib.import_module(name)
assert "services.autoscaler.kube.api" in names
from services.autoscaler.kube.api import KubeApi
from shared.errors import MissingError
try:
    KubeApi()
except MissingError as error:
    sys.stdout.write(str(error))
"""


def test_every_module_is_imported_without_it_and_a_connection_names_the_cure() -> None:
    child = subprocess.run(  # noqa: S603
        [sys.executable, "-c", IMPORT_ALL],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert "pip install 'baton-pd[autoscaler]'" in child.stdout
