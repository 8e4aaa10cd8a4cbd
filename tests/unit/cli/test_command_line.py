"""`baton` itself: exit codes, the one error line, and what its start loads."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.cli import __main__ as command_line
from services.cli.bench.command import BENCHMARKS
from shared.errors import BatonError, MissingError, ModelError, NoGatewayError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """`baton status` raises what the test puts here."""
    errors: list[BaseException] = []

    def run(_: object) -> int:
        if errors:
            raise errors[0]
        return 0

    command = SimpleNamespace(add_arguments=lambda parser: None, run=run)
    monkeypatch.setattr("importlib.import_module", lambda name: command)
    return errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BatonError("it broke"), 1),
        (ModelError("no such\nmodel"), 2),
        (MissingError("no redis: apt-get install redis-server"), 3),
        (NoGatewayError("nobody"), 4),
        (RuntimeError("a bug"), 1),
        (KeyboardInterrupt(), 0),
    ],
)
def test_exit_codes_and_one_line(
    failing: list[BaseException],
    error: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing.append(error)
    assert command_line.main(["status"]) == code
    text = " ".join(str(error).split())
    expected = f"baton: error: {text}\n" if code else ""
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("argv", [["--debug", "status"], ["status", "--debug"]])
def test_debug_shows_the_traceback(
    failing: list[BaseException], argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(BatonError("it broke"))
    assert command_line.main(argv) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_variable_shows_it_too(
    failing: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BATON_DEBUG", "1")
    failing.append(BatonError("it broke"))
    assert command_line.main(["status"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "variable", "shown"),
    [
        (["--debug=true"], "", True),
        (["--debug", "true"], "", True),
        (["--debug=false"], "1", False),
        (["--debug", "false"], "", False),
        ([], "yes", True),
        ([], "false", False),
        (["--preset", "dev"], "", True),
        (["--preset", "dev"], "0", False),
        (["--preset=prod"], "", False),
        (["--preset", "nothing"], "", False),
    ],
)
def test_debug_of_a_process_is_a_setting_like_any_other(
    flags: list[str],
    variable: str,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--debug=true` is what the chart writes, `--debug true` what `up` gives its children."""
    if variable:
        monkeypatch.setenv("BATON_DEBUG", variable)
    assert command_line.main(["serve", "decode", "--kv-blocks=-1", *flags]) == 2
    assert ("Traceback" in capsys.readouterr().err) is shown


@pytest.mark.parametrize("argv", [["nothing"], ["status", "--nothing"], ["up", "--restart", "x"]])
def test_bad_command_line_is_exit_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(argv) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("baton: error: ")
    assert errors.count("\n") == 1


def test_help_lists_only_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([]) == 0
    first, rest = capsys.readouterr().out.split("other commands:")
    listed = re.findall(r"^  (\w+)", first, re.MULTILINE)
    assert listed == [
        "up",
        "down",
        "chat",
        "batch",
        "status",
        "trace",
        "doctor",
        "capacity",
        "bench",
        "serve",
    ]
    listed += re.findall(r"^  (\w+)", rest, re.MULTILINE)
    files = {path.stem for path in (ROOT / "services/cli").glob("*.py")}
    assert set(listed) == (files | set(command_line.FOLDERS)) & set(command_line.COMMANDS)


def test_bench_alone_lists_its_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["bench"]) == 0
    output = capsys.readouterr().out
    assert [line.split()[0] for line in output.splitlines()[2:]] == list(BENCHMARKS)
    assert command_line.main(["bench", "nothing"]) == 2
    names = ", ".join(f"'{name}'" for name in BENCHMARKS)
    assert names in capsys.readouterr().err
    assert command_line.main(["bench", "--rate", "1"]) == 2


@pytest.mark.parametrize("command", [[], ["up", "--help"], ["serve", "--help-all"]])
def test_start_loads_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys\nfrom services.cli.__main__ import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'redis', 'opentelemetry', 'pydantic'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    result = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
