"""Traces as they were published, read from a file that the user has.

    Mooncake   {"timestamp": ms, "input_length": n, "output_length": n, ...} a line
               (kvcache-ai/Mooncake, FAST25-release/traces)
    Azure      TIMESTAMP,ContextTokens,GeneratedTokens
               (Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_*.csv)

Prefix hits are not read from a trace: which prompt finds which blocks depends on the cell's size.
"""

import csv
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from services.autoscaler.view import Arrival
from shared.errors import SettingsError

CSV_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
JSON_FIELDS = ("timestamp", "input_length", "output_length")
DIGITS = len("2023-11-16 18:17:03.979960")
"""of a moment that are read; the seventh decimal of a second is not"""

T = TypeVar("T")


@dataclass(frozen=True)
class Trace:
    """Arrivals in order of time, the first at 0."""

    arrivals: Sequence[Arrival]
    length_s: float
    """after which it may begin again"""


def read_trace(path: Path, seed: int = 1) -> Trace:
    """SettingsError names the line and the field. Requests of one coarse timestamp are spread at
    random until the next: else they would come in bursts that never were."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--trace {path}: {error}") from error
    rows = list(_json_rows(text, path) if text.lstrip().startswith("{") else _csv_rows(text, path))
    if len(rows) < 2:
        raise SettingsError(f"--trace {path}: has fewer than two requests")
    rows.sort(key=lambda row: row[0])
    rows = _spread(rows, random.Random(seed))  # noqa: S311
    first_s, last_s = rows[0][0], rows[-1][0]
    if last_s <= first_s:
        raise SettingsError(f"--trace {path}: all requests come at the same moment")
    arrivals = [Arrival(at_s - first_s, prompt, 0, output) for at_s, prompt, output in rows]
    length_s = last_s - first_s
    return Trace(arrivals, length_s + length_s / len(arrivals))


_Row = tuple[float, int, int]


def _json_rows(text: str, path: Path) -> Iterator[_Row]:
    for number, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip():
            continue
        where = f"--trace {path}, line {number}"
        try:
            item = json.loads(raw)
        except ValueError:
            raise SettingsError(f"{where}: not JSON") from None
        if not isinstance(item, dict):
            raise SettingsError(f"{where}: not an object")
        at, prompt, output = (item.get(name) for name in JSON_FIELDS)
        at_s = _field(where, JSON_FIELDS[0], at, _milliseconds)
        yield at_s, _count(where, JSON_FIELDS[1], prompt), _count(where, JSON_FIELDS[2], output)


def _csv_rows(text: str, path: Path) -> Iterator[_Row]:
    lines = csv.reader(text.splitlines())
    header = next(lines, [])
    missing = [name for name in CSV_FIELDS if name not in header]
    if missing:
        raise SettingsError(f"--trace {path}, line 1: has no column {missing[0]}")
    places = [header.index(name) for name in CSV_FIELDS]
    for number, row in enumerate(lines, start=2):
        where = f"--trace {path}, line {number}"
        if len(row) != len(header):
            raise SettingsError(f"{where}: has {len(row)} fields, and the first line {len(header)}")
        at, prompt, output = (row[place] for place in places)
        at_s = _field(where, CSV_FIELDS[0], at, _moment_s)
        yield at_s, _count(where, CSV_FIELDS[1], prompt), _count(where, CSV_FIELDS[2], output)


def _moment_s(value: object) -> float:
    return datetime.fromisoformat(str(value)[:DIGITS]).timestamp()


def _milliseconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError
    return value / 1000


def _whole(value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def _count(where: str, name: str, value: object) -> int:
    return _field(where, name, value, _whole)


def _field(where: str, name: str, value: object, read: Callable[[object], T]) -> T:
    try:
        return read(value)
    except ValueError:
        raise SettingsError(f"{where}: {name} is {value!r}") from None


def _spread(rows: Sequence[_Row], rng: random.Random) -> list[_Row]:
    """The last timestamp has none after it: the width before it is used."""
    stamps = sorted({row[0] for row in rows})
    widths = {at_s: after_s - at_s for at_s, after_s in pairwise(stamps)}
    if len(stamps) > 1:
        widths[stamps[-1]] = stamps[-1] - stamps[-2]
    crowded: dict[float, int] = {}
    for row in rows:
        crowded[row[0]] = crowded.get(row[0], 0) + 1
    spread = [
        (at_s + rng.uniform(0, widths.get(at_s, 0.0)) * (crowded[at_s] > 1), prompt, output)
        for at_s, prompt, output in rows
    ]
    return sorted(spread)
