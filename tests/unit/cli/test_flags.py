"""Flags made from settings: every one exists, parses and travels unchanged to a child."""

import argparse
import contextlib
import io
import re
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli import serve, up
from services.cli.__main__ import Parser, main
from services.cli.flags import add_settings, given_settings, secrets_environment, to_flags
from shared.errors import SettingsError
from shared.settings.load import EVERY_SETTING, GROUPS, load_settings
from shared.settings.setting import NEVER_FLAGS, SECRETS, flag_name, settings_in

HIDDEN = {flag_name(name) for name in NEVER_FLAGS}
FLAG = re.compile(r"^  (?:-h, )?(--[\w-]+)", re.MULTILINE)
"""in a help text"""


def help_text(command: ModuleType, help_flag: str) -> str:
    parser, output = Parser(prog="baton command"), io.StringIO()
    command.add_arguments(parser)
    with pytest.raises(SystemExit), contextlib.redirect_stdout(output):
        parser.parse_args([help_flag])
    return output.getvalue()


def flags_shown(command: ModuleType, help_flag: str) -> set[str]:
    """The flags that a command's help describes."""
    return set(FLAG.findall(help_text(command, help_flag)))


def parsed(argv: list[str]) -> dict[str, object]:
    parser = Parser(prog="test")
    add_settings(parser)
    return given_settings(parser.parse_args(argv))


def test_every_setting_has_a_flag_and_none_is_set_by_default() -> None:
    assert parsed([]) == {}
    shown = flags_shown(serve, "--help-all")
    assert shown >= {flag_name(item.name) for item in EVERY_SETTING} - HIDDEN
    assert not shown & HIDDEN


@pytest.mark.parametrize("command", [serve, up])
def test_help_shows_what_most_people_need_and_help_all_the_rest(command: ModuleType) -> None:
    common = {flag_name(item.name) for item in EVERY_SETTING if item.common}
    few, every = flags_shown(command, "--help"), flags_shown(command, "--help-all")
    assert len(common) == 12
    assert common <= few < every
    assert not few & ({flag_name(item.name) for item in EVERY_SETTING} - common)


def test_every_setting_is_under_a_heading() -> None:
    titles = [group.heading for group in GROUPS]
    assert len(titles) == len(set(titles)) > 1
    text = help_text(serve, "--help-all")
    for group in GROUPS:
        section = text.partition(f"\n{group.heading}:\n")[2].partition("\n\n")[0]
        flags = [flag_name(item.name) for item in settings_in(group)]
        assert FLAG.findall(section) == [flag for flag in flags if flag not in HIDDEN]


def test_settings_without_a_flag_of_up_are_refused_with_their_variable() -> None:
    parser = Parser(prog="baton up")
    up.add_arguments(parser)
    text = "--max-backlog is not a flag of up; set BATON_MAX_BACKLOG"
    for argv in (["--max-backlog", "4"], ["--max-backlog=4"], ["--detach", "--max-backlog"]):
        with pytest.raises(SettingsError, match=text):
            parser.parse_args(argv)
    assert "--max-backlog" not in parser.format_help()
    assert given_settings(parser.parse_args(["--topology", "pd", "--port", "1"]))["port"] == 1


def test_up_takes_the_flag_of_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, object]] = []

    def run(arguments: argparse.Namespace) -> int:
        seen.append(given_settings(arguments))
        return 0

    monkeypatch.setattr(up, "run", run)
    assert main(["up", "--debug"]) == 0
    assert main(["--debug", "up", "--port", "0"]) == 0
    assert seen == [{"debug": True}, {"debug": True, "port": 0}]


def test_up_takes_what_model_and_machine_ask_for() -> None:
    parser = Parser(prog="baton up")
    up.add_arguments(parser)
    argv = ["--device", "cuda:1", "--max-num-seqs", "8", "--eager", "--random-weights"]
    wanted = {"device": "cuda:1", "max_num_seqs": 8, "eager": True, "random_weights": True}
    assert given_settings(parser.parse_args(argv)) == wanted


def test_the_cell_s_secret_is_no_flag_of_any_command() -> None:
    for module, argv in ((serve, ["decode"]), (up, [])):
        parser = Parser(prog="baton command")
        module.add_arguments(parser)
        with pytest.raises(SettingsError, match="set BATON_CELL_SECRET"):
            parser.parse_args([*argv, "--cell-secret", "hidden"])
        assert "cell-secret" not in parser.format_help()


def test_up_shows_its_own_default_of_threads(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="baton up")
    up.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "[BATON_THREADS, default: max(1, cores // ranks of all workers)]" in shown


@given(
    port=st.integers(0, 65535),
    lease_s=st.floats(0.05, 1e6),
    prefix_cache=st.booleans(),
    model=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
    kv_secret=st.text(st.characters(codec="ascii", categories=["L", "N"])),
)
def test_settings_reach_a_child_unchanged(**values: object) -> None:
    settings = load_settings(values, {})
    flags, environ = parsed(to_flags(settings)), secrets_environment(settings)
    assert load_settings(flags, environ) == settings


def test_secrets_are_never_flags_for_a_child() -> None:
    settings = load_settings(dict.fromkeys(SECRETS, "unix:///hidden"), {})
    assert "hidden" not in " ".join(to_flags(settings))


@pytest.mark.parametrize(
    "argv",
    [["--port", "x"], ["--port"], ["--por", "1"], ["--dtype", ""], ["--prefix-cache", "maybe"]],
)
def test_bad_flag_is_a_settings_error(argv: list[str]) -> None:
    with pytest.raises(SettingsError):
        load_settings(parsed(argv), {})


def test_bool_flag_needs_no_value() -> None:
    assert parsed(["--prefix-cache"]) == {"prefix_cache": True}
    assert parsed(["--prefix-cache", "false"]) == {"prefix_cache": False}
