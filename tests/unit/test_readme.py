"""What the README says of commands and settings is what the code says."""

import ast
import re

from services.cli.__main__ import COMMANDS
from services.cli.up import SETTINGS
from shared.protocol import Load
from shared.settings import flag_name
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.worker_metrics import WorkerSample
from tests.rules.readme_tables import with_tables
from tests.rules.sources import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_current() -> None:
    assert with_tables(README) == README, "run: python -m tests.rules.readme_tables"


def undocumented(metrics: GatewayMetrics, readme: str) -> list[str]:
    """Metric names of ours that the README does not say."""
    found = re.findall(r"^# TYPE (baton_\w+)", metrics.text().decode(), re.MULTILINE)
    stages = {f"baton_request_{stage}_time_seconds" for stage in STAGES}
    names = {name for name in found if not name.endswith("_created")}
    assert stages <= names
    told = {name: name.removesuffix("_total") for name in names - stages}
    return [n for n, base in told.items() if not {base, _of_pool(base)} & _words(readme)]


def _of_pool(name: str) -> str:
    """The pool's total that a worker's counter adds to."""
    return name.replace("baton_worker_", "baton_")


def _words(text: str) -> set[str]:
    return {word.removesuffix("_total") for word in re.findall(r"baton_\w+", text)}


STAGES = ("queue", "prefill", "handover", "decode")


def test_every_metric_is_named() -> None:
    load = Load(1, 0, 0, 0, 4, 4, 0, 0)
    sample = WorkerSample("d", "decode", load, {"steps": 1}, {"transfer": 1})
    metrics = GatewayMetrics(lambda: [sample])
    assert undocumented(metrics, README) == []
    assert set(undocumented(metrics, README.replace("baton_refusals", ""))) == {
        "baton_refusals_total",
        "baton_worker_refusals_total",
    }


def steps_of(readme: str) -> list[tuple[int, str, str]]:
    """(step, file, function) of the nine-step table."""
    rows = re.findall(r"^\| (\d) \|.*\|([^|]*)\|$", readme, re.MULTILINE)
    return [
        (int(step), path, function)
        for step, places in rows
        for path, function in re.findall(r"`([\w/]+\.py):(\w+)`", places)
    ]


def missing_steps(steps: list[tuple[int, str, str]]) -> list[str]:
    """Places whose function does not exist, or does not say its step's number."""
    wrong = []
    for step, path, function in steps:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        texts = [
            ast.get_docstring(node) or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        ]
        if not any(re.search(rf"[Ss]teps?\b[^.:]*\b{step}\b", text) for text in texts):
            wrong.append(f"step {step}: {path}:{function}")
    return wrong


def test_nine_steps_lead_to_functions_that_say_their_number() -> None:
    steps = steps_of(README)
    assert {step for step, _, _ in steps} == set(range(1, 10))
    assert missing_steps(steps) == []


def test_a_wrong_place_in_the_nine_steps_is_found() -> None:
    path = "services/gateway/owner/sequencer.py"
    assert missing_steps([(8, path, "push")]) == []
    assert missing_steps([(7, path, "push"), (8, path, "vanished")]) != []


def test_every_command_is_named() -> None:
    existing = [name for name in COMMANDS if (ROOT / f"services/cli/{name}.py").is_file()]
    assert [name for name in existing if f"baton {name}" not in README] == []


def test_every_flag_of_up_is_named() -> None:
    flags = [
        *map(flag_name, SETTINGS),
        *("--topology", "--prefill", "--decode", "--restart", "--log-dir", "--detach"),
    ]
    assert [flag for flag in flags if flag not in README] == []
