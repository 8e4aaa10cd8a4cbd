"""What the README says of commands and settings is what the code says."""

from services.cli.__main__ import COMMANDS
from services.cli.up import SETTINGS
from shared.settings import flag_name
from tests.rules.settings_table import with_table
from tests.rules.sources import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_settings_table_is_current() -> None:
    assert with_table(README) == README, "run: python -m tests.rules.settings_table"


def test_every_command_is_named() -> None:
    existing = [name for name in COMMANDS if (ROOT / f"services/cli/{name}.py").is_file()]
    assert [name for name in existing if f"baton {name}" not in README] == []


def test_every_flag_of_up_is_named() -> None:
    flags = [
        *map(flag_name, SETTINGS),
        *("--topology", "--prefill", "--decode", "--restart", "--log-dir", "--detach"),
    ]
    assert [flag for flag in flags if flag not in README] == []
