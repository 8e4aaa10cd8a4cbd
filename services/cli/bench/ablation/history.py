"""Earlier runs, in a file with a JSON line for each."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from shared.errors import BatonError, SettingsError

KIND = "ablation"
TEXTS = ("date", "release", "device", "model")


@dataclass(frozen=True)
class Run:
    """One run, as its line has it."""

    date: str
    """of its end, in UTC"""
    release: str
    device: str
    model: str
    conditions: Mapping[str, Any]
    """the type, the load, and what else a figure depends on"""
    rows: Mapping[str, Mapping[str, float | None]]
    """name of a row -> its figures"""
    factors: Mapping[str, float]

    @classmethod
    def of_line(cls, line: str) -> "Run":
        """ValueError says what it lacks; members that are not known here are left out."""
        value = json.loads(line)
        if not isinstance(value, dict) or value.get("kind") != KIND:
            raise ValueError(f'no JSON object with "kind": "{KIND}"')
        if not all(isinstance(value.get(name), str) for name in TEXTS):
            raise ValueError(f"one of {', '.join(TEXTS)} lacks or is no text")
        maps = [value.get(name) for name in ("conditions", "rows", "factors")]
        if not all(isinstance(each, dict) for each in maps) or not _has_figures(value["rows"]):
            raise ValueError("conditions, rows or factors lack, or hold no numbers")
        return cls(*(value[name] for name in TEXTS), *maps)

    @property
    def line(self) -> str:
        return json.dumps({"kind": KIND, **asdict(self)})

    def is_like(self, other: "Run") -> bool:
        """Whatever differs then is the program's doing, or the machine's."""
        return self.has_place_of(other) and self.conditions == other.conditions

    def has_place_of(self, other: "Run") -> bool:
        """The same model on the same device."""
        return (self.device, self.model) == (other.device, other.model)


def read_runs(path: Path) -> Sequence[Run]:
    """In the order of the file, which need not be there yet. SettingsError names the line that is
    damaged, or says why the file cannot be read or added to: better before a run than after it."""
    try:
        text = _text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--history {path}: cannot be read: {error}") from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingsError(f"--history {path}: cannot be written")
    lines = enumerate(text.split("\n"), 1)
    return [_run(path, number, line) for number, line in lines if line.strip()]


def add_run(path: Path, run: Run) -> None:
    """At the end of the file. BatonError, with the line, where it cannot be written."""
    try:
        text = _text(path)
        begin = "\n" if text and not text.endswith("\n") else ""
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{begin}{run.line}\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BatonError(
            f"--history {path}: cannot be written: {error}; its line is {run.line}"
        ) from None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _run(path: Path, number: int, line: str) -> Run:
    try:
        return Run.of_line(line)
    except ValueError as error:
        raise SettingsError(
            f"--history {path}: line {number} is damaged ({error}); repair or remove it"
        ) from None


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(cast(float, value))


def _has_figures(rows: Mapping[str, Any]) -> bool:
    """Each a number, or null where it was not asked for."""
    return all(
        isinstance(row, dict) and all(value is None or _is_number(value) for value in row.values())
        for row in rows.values()
    )
