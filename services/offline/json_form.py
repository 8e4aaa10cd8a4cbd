"""Python's values as readers of JSON take them."""

from collections.abc import Mapping
from typing import Any


def as_json(value: Any) -> Any:
    """Tuples as lists, and objects with texts for keys."""
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value
