"""Settings from flags and the environment, and back.

A flag beats the environment, that beats a preset, and a preset beats the default. Settings are read
nowhere else. A bad value, or a `BATON_` variable that names no setting, stops the start with a
SettingsError that says which and why. `BATON_CELL_SECRET_FILE`, `BATON_KV_SECRET_FILE` and
`BATON_REDIS_FILE` name a file that holds the value instead. The cell's secret is never a flag.
"""

import os
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from shared.settings.groups import Settings
from shared.settings.presets import preset_lines, preset_values
from shared.settings.setting import (
    PREFIX,
    SECRETS,
    Group,
    Setting,
    as_text,
    environment_name,
    settings_in,
)

NOT_SETTINGS = frozenset({"BATON_URL", "BATON_API_KEY"})
"""variables of ours that clients read and no process is configured by"""
FILE_SUFFIX = "_FILE"

GROUPS: tuple[type[Group], ...] = tuple(typing.get_type_hints(Settings).values())
EVERY_SETTING: tuple[Setting, ...] = tuple(item for group in GROUPS for item in settings_in(group))
"""in the order of help and tables"""


def load_settings(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from flags over environment over the preset that these name over defaults.

    `flags` maps setting names to typed values; None means "not given". SettingsError on an
    unknown name, an unknown `BATON_` variable, or a value out of its limits.
    """
    known = {item.name for item in EVERY_SETTING}
    values = _from_environment(os.environ if environ is None else environ)
    for name, value in (flags or {}).items():
        if name not in known:
            raise SettingsError(f"unknown setting {name!r}")
        if value is not None:
            values[name] = value
    return _build({**preset_values(values.get("preset", "")), **values})


def changed(settings: Settings, **values: Any) -> Settings:
    """The same settings but for those named, as `kv_blocks=64`."""
    given = {item.name: value for item, value in values_of(*settings.groups)}
    assert values.keys() <= given.keys(), "not the name of a setting"
    return _build({**given, **values})


def values_of(*groups: Group) -> Iterator[tuple[Setting, Any]]:
    """Every setting of these groups and what it is."""
    for group in groups:
        for item in settings_in(type(group)):
            yield item, getattr(group, item.attribute)


def to_tell(*groups: Group) -> Iterator[tuple[Setting, Any]]:
    """What another process must be told to have these groups too: no default, and no preset, whose
    values are among the others."""
    for item, value in values_of(*groups):
        if value != item.default and item.name != "preset":
            yield item, value


def said_of_preset(settings: Settings) -> list[str]:
    """Lines for whoever started the process; none without a preset."""
    values = {item.name: value for item, value in values_of(*settings.groups)}
    return list(preset_lines(settings.cell.preset, values))


def to_environment(*groups: Group) -> dict[str, str]:
    """The `BATON_` variables that make another process load these same groups, without secrets: it
    needs none, and an environment can be read in /proc."""
    return {
        environment_name(item.name): as_text(value)
        for item, value in to_tell(*groups)
        if item.name not in SECRETS
    }


def _build(values: Mapping[str, Any]) -> Settings:
    return Settings(*(_group(kind, values) for kind in GROUPS))  # type: ignore[arg-type]


def _group(kind: type[Group], values: Mapping[str, Any]) -> Group:
    items = [item for item in settings_in(kind) if item.name in values]
    return kind(**{item.attribute: values[item.name] for item in items})


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {environment_name(item.name): item for item in EVERY_SETTING}
    values: dict[str, Any] = {}
    for variable, text in sorted(_with_files_read(environ).items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in known:
            raise SettingsError(f"{variable} names no setting; `baton serve --help-all` lists them")
        item = known[variable]
        values[item.name] = item.parse(text)
    return values


def _with_files_read(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with each secret itself in place of the name of its file."""
    read = dict(environ)
    for variable in map(environment_name, sorted(SECRETS)):
        path = read.pop(variable + FILE_SUFFIX, None)
        if path is None:
            continue
        if variable in read:
            raise SettingsError(f"{variable} and {variable}{FILE_SUFFIX} are both given")
        try:
            read[variable] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{variable}{FILE_SUFFIX}: cannot read it: {error}") from None
    return read
