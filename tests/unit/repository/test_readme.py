"""What the READMEs say of commands, settings and the path of a request is what the code says."""

import ast
import re
from pathlib import Path

import pytest

from services.cli.__main__ import COMMANDS
from services.cli.up import SETTINGS
from services.gateway.owner.records.group_receipt import group_body
from services.gateway.owner.records.receipt import AttemptNote, Receipt
from shared.protocol import Load
from shared.settings.setting import flag_name
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.worker_metrics import WorkerSample
from tests.rules.readme_tables import PATH, TABLES, num_lines
from tests.rules.sources import ROOT

MOST_LINES = 200
"""of the first README, which is a front door"""
WEEKEND_LINES = 4500
"""that one reads in a weekend"""


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


README = text_of("README.md")


@pytest.mark.parametrize("path", TABLES)
def test_tables_are_current(path: str) -> None:
    assert TABLES[path](text_of(path)) == text_of(path), "run: python -m tests.rules.readme_tables"


def test_the_first_readme_is_a_front_door() -> None:
    num = len(README.splitlines())
    assert num <= MOST_LINES, f"{num} lines; put what is not for everybody in a room's README"
    assert "make demo" in "\n".join(README.splitlines()[:24]), "the first screen has it"


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
    readme = text_of("shared/telemetry/README.md")
    assert undocumented(metrics, readme) == []
    assert set(undocumented(metrics, readme.replace("baton_refusals", ""))) == {
        "baton_refusals_total",
        "baton_worker_refusals_total",
    }


def unexplained(receipt: Receipt, readme: str) -> list[str]:
    """Members of its body, its attempts, its path and its group's that the section does not say."""
    section = readme.partition("\n## Receipts\n")[2].partition("\n## ")[0]
    body = receipt.as_dict()
    group = group_body("g", [body])
    parts = (body, body["attempts"][0], group["critical_path_ms"], group, group["choices"][0])
    told = set(re.findall(r"[`\"](\w+)[`\"]", section))
    return sorted({name for part in parts for name in part} - told)


def test_every_member_of_a_receipt_is_explained() -> None:
    attempts = [AttemptNote(epoch, "prefill", "", "") for epoch in range(2)]
    receipt = Receipt("r", "chat", 1, 1, 1, ended_ns=2, outcome="done", attempts=attempts)
    readme = text_of("services/gateway/README.md")
    assert unexplained(receipt, readme) == []
    for name in ("critical_path_ms", "handover_overlapped_ms", "earlier_attempts", "queued_ns"):
        assert unexplained(receipt, readme.replace(f"`{name}`", "x").replace(f'"{name}"', "x")) == [
            name
        ]


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
        tree = ast.parse(text_of(path))
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
    path = "services/gateway/owner/machine/sequencer.py"
    assert missing_steps([(8, path, "push")]) == []
    assert missing_steps([(7, path, "push"), (8, path, "vanished")]) != []


def test_the_path_of_a_request_is_read_in_a_weekend() -> None:
    paths = [path for step in PATH.values() for path in step]
    assert {path for _, path, _ in steps_of(README)} <= set(paths), "every file of the nine steps"
    assert len(set(paths)) == len(paths)
    assert sum(map(num_lines, paths)) < WEEKEND_LINES


def test_every_command_is_named() -> None:
    readme = text_of("services/cli/README.md")
    existing = [name for name in COMMANDS if (ROOT / f"services/cli/{name}.py").is_file()]
    assert [name for name in existing if f"baton {name}" not in readme] == []


def test_every_flag_of_up_is_named() -> None:
    flags = [
        *map(flag_name, SETTINGS),
        *("--topology", "--prefill", "--decode", "--restart", "--log-dir", "--detach"),
    ]
    readme = text_of("services/cli/README.md")
    assert [flag for flag in flags if flag not in readme] == []


def readmes() -> list[Path]:
    rooms = ("docker", "helm", "kernels", "loadtest", "services", "shared", "tests")
    return [
        *ROOT.glob("*.md"),
        *(path for room in rooms for path in sorted((ROOT / room).rglob("*.md"))),
    ]


def prose(text: str) -> str:
    """Without code blocks, where `#` starts a comment."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """What a link may name: each heading in lower case, spaces as dashes, no other marks."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(text: str, folder: Path) -> list[str]:
    """Links whose file does not exist, or has no such heading; other hosts are not asked."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if link.startswith(("https://", "http://")):
            continue
        name, _, anchor = link.partition("#")
        target = folder / name
        if name and not target.exists():
            dead.append(link)
        elif anchor:
            there = target.read_text(encoding="utf-8") if name else text
            dead += [link] * (anchor not in anchors(there))
    return dead


@pytest.mark.parametrize("path", readmes(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    assert dead_links(path.read_text(encoding="utf-8"), path.parent) == []


def unknown_files(text: str, folder: Path) -> list[str]:
    """Python files that a text names by a path which leads nowhere, from the root or its folder;
    a bare name may be anywhere below its folder."""
    names = set(re.findall(r"`([\w/]+\.py)\b", prose(text)))
    found = [name for name in names if (ROOT / name).exists() or any(folder.rglob(name))]
    return sorted(names - set(found))


@pytest.mark.parametrize("path", readmes(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(path: Path) -> None:
    assert unknown_files(path.read_text(encoding="utf-8"), path.parent) == []


def test_an_unknown_file_is_found() -> None:
    known = "`shared/settings/groups.py`, `tests/rules/words.py:main`, `readme_tables.py`"
    assert unknown_files(known, ROOT / "tests") == []
    assert unknown_files("`rules/vanished.py`", ROOT / "tests") == ["rules/vanished.py"]


def test_every_readme_is_one_click_from_the_first() -> None:
    linked = {(ROOT / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", README)}
    assert [path for path in readmes() if path not in {*linked, ROOT / "README.md"}] == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A `title` of it\n```\n# no title\n```\n")
    good = "# Here\n[a](there.md) [b](there.md#a-title-of-it) [c](#here) [d](https://x.invalid/#y)"
    assert dead_links(good, tmp_path) == []
    bad = "[a](gone.md) [b](there.md#no-title) [c](#here)"
    assert dead_links(bad, tmp_path) == ["gone.md", "there.md#no-title", "#here"]
