"""Traces in the form that Mooncake published: one JSON object a line.

`{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id per 512 tokens]}`; equal
ids are equal blocks of 512 tokens, so equal leading ids are a shared prefix. `hash_ids` may be
missing: such a prompt shares nothing.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from shared.errors import SettingsError

BLOCK_TOKENS = 512


@dataclass(frozen=True)
class TraceLine:
    """One request of a trace."""

    at_s: float
    num_input: int
    num_output: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> list[TraceLine]:
    """In order of time, the first at 0. SettingsError names the bad line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--trace {path}: {error}") from error
    lines = [
        _line(raw, f"--trace {path}, line {number}")
        for number, raw in enumerate(text.splitlines(), start=1)
        if raw.strip()
    ]
    if not lines:
        raise SettingsError(f"--trace {path}: has no request")
    lines.sort(key=lambda line: line.at_s)
    first_s = lines[0].at_s
    return [replace(line, at_s=line.at_s - first_s) for line in lines]


def spread_equal_times(
    lines: Sequence[TraceLine], rng: random.Random
) -> tuple[list[TraceLine], int]:
    """Spreads requests with one timestamp evenly at random until the next timestamp, because a
    trace with coarse stamps would come in bursts that never were. Returns how many it moved.

    The last stamp has no next one: the gap before it is used."""
    stamps = sorted({line.at_s for line in lines})
    width_s = {at: after - at for at, after in pairwise(stamps)}
    if len(stamps) > 1:
        width_s[stamps[-1]] = stamps[-1] - stamps[-2]
    num_at = Counter(line.at_s for line in lines)
    crowded = {at for at in stamps if num_at[at] > 1}
    moved = [
        replace(line, at_s=line.at_s + rng.uniform(0.0, width_s.get(line.at_s, 0.0)))
        if line.at_s in crowded
        else line
        for line in lines
    ]
    return sorted(moved, key=lambda line: line.at_s), sum(line.at_s in crowded for line in lines)


def _line(raw: str, where: str) -> TraceLine:
    try:
        item = json.loads(raw)
    except ValueError:
        raise SettingsError(f"{where}: not JSON") from None
    if not isinstance(item, dict):
        raise SettingsError(f"{where}: not an object")
    hash_ids = item.get("hash_ids", [])
    if not isinstance(hash_ids, list) or not all(isinstance(one, int) for one in hash_ids):
        raise SettingsError(f"{where}: hash_ids is a list of numbers")
    num_input = _count(item, "input_length", where)
    if hash_ids and len(hash_ids) * BLOCK_TOKENS < num_input:
        raise SettingsError(f"{where}: {len(hash_ids)} hash_ids for {num_input} tokens")
    return TraceLine(
        at_s=_number(item, "timestamp", where) / 1000,
        num_input=num_input,
        num_output=_count(item, "output_length", where),
        hash_ids=tuple(hash_ids),
    )


def _number(item: dict[str, Any], name: str, where: str) -> float:
    value = item.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise SettingsError(f"{where}: {name} is a number of at least 0")
    return float(value)


def _count(item: dict[str, Any], name: str, where: str) -> int:
    value = item.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingsError(f"{where}: {name} is a whole number of at least 1")
    return value
