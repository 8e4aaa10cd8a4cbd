"""Single fields of a config.json, checked: a wrong type is one ModelError sentence."""

import math
from collections.abc import Mapping
from typing import Any

from shared.errors import ModelError


def count(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer; `default`, which need not be one, where the field is absent or null."""
    value = raw.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 1:
        raise ModelError(f"config.json: {name} is {value!r}, needs a positive integer")
    return value


def number(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A finite number; `default` where the field is absent or null."""
    value = raw.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"config.json: {name} is {value!r}, needs a number")
    return float(value)
