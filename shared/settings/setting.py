"""One setting: what it is called everywhere, what it may be, and a group of such.

A setting `kv_blocks` is `--kv-blocks` on a command line, `BATON_KV_BLOCKS` in the environment and
`kvBlocks` in Helm values. In the code it is a field of its group: `settings.kv.blocks`.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from shared.errors import SettingsError

PREFIX = "BATON_"
SECRETS = frozenset({"cell_secret", "kv_secret", "redis"})
"""settings that no list of processes may show; a file may hold them, so that nothing else does"""
NEVER_FLAGS = frozenset({"cell_secret"})
"""settings of every process that come from the environment or a file only"""

KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    return PREFIX + name.upper()


def helm_name(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def as_text(value: Any) -> str:
    """A value as a flag or a variable gives it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Setting:
    """One setting."""

    name: str
    """what flag, variable and Helm value are made of"""
    attribute: str
    """its field of the group"""
    kind: type
    default: Any
    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    """the texts it may be; empty: any"""
    common: bool
    """most people need it, so `--help` shows it"""

    def parse(self, text: str) -> Any:
        """The typed value of a text; SettingsError if it is of another kind."""
        try:
            return BOOLEANS[text.lower()] if self.kind is bool else self.kind(text)
        except (KeyError, ValueError):
            names = f"{flag_name(self.name)} ({environment_name(self.name)})"
            raise SettingsError(f"{names}: {text!r} is not {KINDS[self.kind]}") from None

    def check(self, value: Any) -> None:
        """SettingsError if it may not be this."""
        flag = flag_name(self.name)
        if self.kind is float and type(value) is int:
            value = float(value)
        kind = type(value)
        if kind is not self.kind:
            raise SettingsError(f"{flag}: {value!r} is not {KINDS[self.kind]}")
        if self.choices and value not in self.choices:
            raise SettingsError(f"{flag}: {value!r} is not one of {self.choices}")
        if self.low is not None and not value >= self.low:
            raise SettingsError(f"{flag}: {value} is below {self.low}")
        if self.high is not None and not value <= self.high:
            raise SettingsError(f"{flag}: {value} is above {self.high}")


def setting(
    default: Any,
    help_text: str,
    *,
    name: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    common: bool = False,
) -> Any:
    """A field of a group. `name`: the setting's, where the field has another."""
    limits = {"low": low, "high": high, "choices": choices}
    return field(
        default=default, metadata={"name": name, "help": help_text, "common": common, **limits}
    )


class Group:
    """Settings that are read together: a frozen dataclass of `setting` fields, checked when one is
    made."""

    heading: ClassVar[str]
    """of these settings in the help"""

    def __init_subclass__(cls, heading: str) -> None:
        cls.heading = heading

    def __post_init__(self) -> None:
        for item in settings_in(type(self)):
            item.check(getattr(self, item.attribute))


def settings_in(group: type[Group]) -> tuple[Setting, ...]:
    """The settings of a group, in order."""
    found = []
    for item in fields(group):  # type: ignore[arg-type]  # every subclass is a dataclass
        assert isinstance(item.type, type)
        described = {**item.metadata, "name": item.metadata["name"] or item.name}
        found.append(
            Setting(attribute=item.name, kind=item.type, default=item.default, **described)
        )
    return tuple(found)
