"""Flags made from settings: every one exists, parses and travels unchanged to a child."""

import argparse
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli import serve, up
from services.cli.__main__ import Parser, main
from services.cli.flags import add_settings, given_settings, secrets_environment, to_flags
from shared.errors import SettingsError
from shared.settings import NEVER_FLAGS, SECRETS, Settings, flag_name, load_settings


def parsed(argv: list[str]) -> dict[str, object]:
    parser = Parser(prog="test")
    add_settings(parser)
    return given_settings(parser.parse_args(argv))


def test_every_setting_has_a_flag_and_none_is_set_by_default() -> None:
    assert parsed([]) == {}
    parser = Parser(prog="test")
    add_settings(parser)
    text = parser.format_help()
    names = {item.name for item in fields(Settings)}
    assert all(flag_name(name) in text for name in names - NEVER_FLAGS)
    assert not any(flag_name(name) in text for name in NEVER_FLAGS)


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


def test_an_empty_kv_secret_is_made_from_the_cell_s() -> None:
    one, same, other, salted = (
        Settings(cell_secret=cell, kv_secret=salt)
        for cell, salt in (("a", ""), ("a", ""), ("b", ""), ("a", "k"))
    )
    assert one.block_hash_secret == same.block_hash_secret != other.block_hash_secret
    assert len(one.block_hash_secret) == 32 and one.block_hash_secret != b"a"
    assert salted.block_hash_secret == b"k"
    assert Settings().block_hash_secret == b""
    assert one.without_secrets() == Settings()


def test_up_shows_its_own_default_of_threads() -> None:
    parser = Parser(prog="baton up")
    up.add_arguments(parser)
    shown = " ".join(parser.format_help().split())
    assert "[BATON_THREADS, default: max(1, cores // workers)]" in shown


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
