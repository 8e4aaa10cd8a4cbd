"""Command-line flags made from the settings, so that each is described once."""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from functools import partial
from typing import Any, NoReturn

from shared.settings import (
    NEVER_FLAGS,
    SECRETS,
    Settings,
    environment_name,
    flag_name,
    parse,
)

OF_EVERY_COMMAND = frozenset({"--debug"})


class _EnvironmentOnly(argparse.Action):
    """The flag of a setting that a command takes from the environment only: says so."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        flag, command = self.option_strings[0], parser.prog.rpartition(" ")[2]
        parser.error(f"{flag} is not a flag of {command}; set {environment_name(self.dest)}")


def add_settings(
    parser: argparse.ArgumentParser,
    names: Iterable[str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> None:
    """A flag for each named setting, all when None; one that is never a flag says so. A flag not
    given parses as None.

    `defaults`: what the help shows where the command has a default of its own.
    """
    wanted = None if names is None else set(names)
    for item in fields(Settings):
        if item.name in NEVER_FLAGS:
            continue
        if wanted is None or item.name in wanted:
            _add_setting(parser, item, (defaults or {}).get(item.name, _shown(item)))


def refuse_settings(parser: argparse.ArgumentParser) -> None:
    """Name the variable of every setting that the command has no flag for; add it last."""
    known = {name for action in parser._actions for name in action.option_strings}
    known |= OF_EVERY_COMMAND
    for item in fields(Settings):
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
    names = {item.name for item in fields(Settings)}
    return {
        name: value
        for name, value in vars(arguments).items()
        if name in names and value is not None
    }


def to_flags(settings: Settings) -> list[str]:
    """The flags that differ from the defaults, without secrets."""
    flags: list[str] = []
    for item in fields(Settings):
        value = getattr(settings, item.name)
        if value != item.default and item.name not in SECRETS:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            flags += [flag_name(item.name), text]
    return flags


def secrets_environment(settings: Settings) -> dict[str, str]:
    """The secrets that differ from the defaults, as `BATON_` variables."""
    return {
        environment_name(item.name): str(getattr(settings, item.name))
        for item in fields(Settings)
        if item.name in SECRETS and getattr(settings, item.name) != item.default
    }


def _add_setting(parser: argparse.ArgumentParser, item: "Field[Any]", default: str) -> None:
    text = f"{item.metadata['help']} [{environment_name(item.name)}, default: {default}]"
    optional: dict[str, Any] = {"nargs": "?", "const": True} if item.type is bool else {}
    parser.add_argument(
        flag_name(item.name),
        dest=item.name,
        type=partial(parse, item.name),
        default=argparse.SUPPRESS,
        metavar=_metavar(item),
        help=text.replace("%", "%%"),
        **optional,
    )


def _shown(item: "Field[Any]") -> str:
    if isinstance(item.default, bool):
        return str(item.default).lower()
    return str(item.default) if item.default != "" else "empty"


def _metavar(item: "Field[Any]") -> str:
    if item.metadata["choices"]:
        return "|".join(item.metadata["choices"])
    if item.type is bool:
        return "true|false"
    return "TEXT" if item.type is str else "N"
