"""A flag's amount of something: a rate, a price, a time."""

from argparse import ArgumentTypeError
from math import inf


def above_zero(text: str) -> float:
    """ArgumentTypeError unless it is a finite number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise ArgumentTypeError(f"{text!r} is not above zero")
    return number
