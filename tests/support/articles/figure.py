"""A row of the tables of figures: whether its value is what its formula says."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.articles.arithmetic import numbers_in, values_of
from tests.support.articles.tables import bare_numbers

SCALES = {
    **{"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "KB": 1e3, "MB": 1e6, "GB": 1e9},
    **{"%": 0.01, "billion": 1e9, "": 1.0},
    **dict.fromkeys(("tokens", "tokens/s", "requests", "times", "ms", "USD", "GPUs", "cores"), 1.0),
}


@dataclass(frozen=True)
class Shown:
    """A cell: numbers with ` / ` between them, and their unit."""

    numbers: tuple[str, ...]
    unit: str

    @classmethod
    def of(cls, cell: str) -> "Shown":
        """ValueError for a unit that nobody knows."""
        *first, last = cell.split(" / ")
        number, _, unit = last.partition(" ")
        if unit not in SCALES:
            raise ValueError(f"{unit!r} is no unit")
        return cls((*first, number), unit)

    def are(self, values: Sequence[float]) -> list[bool]:
        """Whether each is its value, rounded to as many places as are shown."""
        return [
            f"{value / SCALES[self.unit]:.{_places(number)}f}" == number.replace(",", "")
            for value, number in zip(values, self.numbers, strict=True)
        ]


@dataclass(frozen=True)
class Figure:
    row: str
    name: str
    formula: str
    value: str
    printed: str
    """what the articles have, where it is wrong"""

    @property
    def wrong(self) -> str:
        """Why it does not hold; empty if it does."""
        formula = self.formula.strip("`")
        try:
            values, shown = values_of(formula), Shown.of(self.value)
            if not all(shown.are(values)):
                return f"{self.row}: {formula} is {values}, not {self.value}"
            if self.printed and any(Shown.of(self.printed).are(values)):
                return f"{self.row}: {self.printed} is right"
        except ValueError as error:
            return f"{self.row}: {error}"
        said = {_number(text) for text in bare_numbers(self.name)}
        unknown = said - numbers_in(formula) - {_number(text) for text in shown.numbers}
        return f"{self.row}: no {unknown} in the formula of {self.name!r}" if unknown else ""


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _places(number: str) -> int:
    return len(number.partition(".")[2])
