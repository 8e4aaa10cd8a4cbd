"""Command-line flags made from the settings, so that each is described once."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from shared.settings.groups import Settings
from shared.settings.load import EVERY_SETTING, GROUPS, to_tell
from shared.settings.setting import (
    NEVER_FLAGS,
    SECRETS,
    Setting,
    as_text,
    environment_name,
    flag_name,
    settings_in,
)

OF_EVERY_COMMAND = frozenset({"--debug"})
CELL_SETTINGS = (
    "model",
    "random_weights",
    "device",
    "dtype",
    "transport",
    "threads",
    "kv_blocks",
    "block_size",
    "max_model_len",
    "gpu_memory_utilization",
    "kv_memory_mib",
    "eager",
)
"""of a cell that a benchmark starts"""


class _EnvironmentOnly(argparse.Action):
    """The flag of a setting that a command takes from the environment only: says so."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        flag, command = self.option_strings[0], parser.prog.rpartition(" ")[2]
        parser.error(f"{flag} is not a flag of {command}; set {environment_name(self.dest)}")


class HelpAll(argparse.Action):
    """`--help-all`: prints the help with the flags that `--help` leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)
        self._texts: dict[argparse.Action, str | None] = {}

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        for action, text in self._texts.items():
            action.help = text
        parser.print_help()
        parser.exit()

    def alone_shows(self, action: argparse.Action) -> None:
        """`--help` leaves this flag out."""
        self._texts[action] = action.help
        action.help = argparse.SUPPRESS


def add_settings(
    parser: argparse.ArgumentParser,
    names: Iterable[str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> HelpAll:
    """A flag for each named setting, all when None, but for those that are never flags. `--help`
    shows those most people need, `--help-all` every one. A flag not given parses as None.

    `defaults`: what the help shows where the command has a default of its own.
    """
    help_all = parser.add_argument("--help-all", action=HelpAll, help="show every flag and exit")
    assert isinstance(help_all, HelpAll)
    wanted = None if names is None else set(names)
    for group in GROUPS:
        section = parser.add_argument_group(group.heading)
        for item in settings_in(group):
            if item.name in NEVER_FLAGS or (wanted is not None and item.name not in wanted):
                continue
            default = (defaults or {}).get(item.name, _shown(item))
            action = _add_setting(section, item, default)
            if not item.common:
                help_all.alone_shows(action)
    return help_all


def refuse_settings(parser: argparse.ArgumentParser) -> None:
    """Name the variable of every setting that the command has no flag for; add it last."""
    known = {name for action in parser._actions for name in action.option_strings}
    known |= OF_EVERY_COMMAND
    for item in EVERY_SETTING:
        if flag_name(item.name) not in known:
            parser.add_argument(
                flag_name(item.name),
                dest=item.name,
                action=_EnvironmentOnly,
                nargs="?",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings a parsed command line names."""
    names = {item.name for item in EVERY_SETTING}
    return {
        name: value
        for name, value in vars(arguments).items()
        if name in names and value is not None
    }


def to_flags(settings: Settings) -> list[str]:
    """The flags another process must be given, without secrets."""
    flags: list[str] = []
    for item, value in to_tell(*settings.groups):
        if item.name not in SECRETS:
            flags += [flag_name(item.name), as_text(value)]
    return flags


def secrets_environment(settings: Settings) -> dict[str, str]:
    """The secrets that it must be given, as `BATON_` variables."""
    return {
        environment_name(item.name): str(value)
        for item, value in to_tell(*settings.groups)
        if item.name in SECRETS
    }


def _add_setting(
    section: "argparse._ArgumentGroup", item: Setting, default: str
) -> argparse.Action:
    text = f"{item.help} [{environment_name(item.name)}, default: {default}]"
    optional: dict[str, Any] = {"nargs": "?", "const": True} if item.kind is bool else {}
    return section.add_argument(
        flag_name(item.name),
        dest=item.name,
        type=item.parse,
        default=argparse.SUPPRESS,
        metavar=_metavar(item),
        help=text.replace("%", "%%"),
        **optional,
    )


def _shown(item: Setting) -> str:
    return as_text(item.default) or "empty"


def _metavar(item: Setting) -> str:
    if item.choices:
        return "|".join(item.choices)
    if item.kind is bool:
        return "true|false"
    return "TEXT" if item.kind is str else "N"
