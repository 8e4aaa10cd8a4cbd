"""The table, the factors below it, the picture, and the JSON lines."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.cli.bench.ablation.figures import COLUMNS, Column, Figures
from services.cli.bench.ablation.measurement import GRAPHS
from services.cli.bench.ablation.row import NOT_MULTIPLIED, Factor, Row
from services.cli.bench.ablation.table import aligned
from services.cli.bench.serve.report.svg import COLOURS, Panel, picture
from shared.plot.axis import Axis

NO_GPU = f"{GRAPHS}: not run, as there is no GPU\n"
LABEL_SPACE = 1.5
"""the axis is this much longer than its longest bar, for what is written next to it"""
PANELS_A_LINE = 3
PANEL_WIDTH, PANEL_HEIGHT = 490, 340
"""with what is around it"""


def render_text(figures: Mapping[str, Figures], found: Sequence[Factor]) -> str:
    """For a terminal. `figures`: of each row, in the order of the table."""
    cells = [("", *(column.head for column in COLUMNS))]
    cells += [(name, *(column.cell(each) for column in COLUMNS)) for name, each in figures.items()]
    text = aligned(cells)
    if GRAPHS not in figures:
        text += NO_GPU
    text += "\n"
    for factor in found:
        shown = f"{factor.value:,.1f} {factor.unit}" if factor.unit else f"{factor.value:.1%}"
        text += f"{factor.name:9}{shown:>14}  {factor.text}\n"
    return f"{text}{NOT_MULTIPLIED}\n"


def render_svg(figures: Mapping[str, Figures], model: str) -> str:
    """A panel for each figure, a bar in it for each row; none of the cost without a price."""
    known = [
        column
        for column in COLUMNS
        if all(column.value(each) is not None for each in figures.values())
    ]
    panels = [_panel(column, figures, number) for number, column in enumerate(known)]
    num_lines = (len(panels) - 1) // PANELS_A_LINE + 1
    width, height = PANELS_A_LINE * PANEL_WIDTH + 30, num_lines * PANEL_HEIGHT + 60
    return picture(f"{model}: what each part brings", panels, width, height)


def row_record(row: Row, figures: Figures, base: Row) -> dict[str, Any]:
    """A row's JSON line."""
    return {
        "kind": "row",
        "name": row.name,
        **figures.record(),
        "speed_up": round(row.tokens_a_second / base.tokens_a_second, 3),
        "prefix_hit_share": round(row.hit_share, 4),
    }


def _panel(column: Column, figures: Mapping[str, Figures], number: int) -> Panel:
    values = [column.value(each) or 0.0 for each in figures.values()]
    panel = Panel(
        column.title,
        Axis(column.unit, 0.0, LABEL_SPACE * (max(values) or 1.0)),
        Axis("", 0.0, float(len(figures)), bare=True),
        left=40 + number % PANELS_A_LINE * PANEL_WIDTH,
        top=80 + number // PANELS_A_LINE * PANEL_HEIGHT,
        width=440,
        height=260,
    )
    for at, (name, value) in enumerate(zip(figures, values, strict=True)):
        place = len(figures) - at - 0.5
        panel.bar((0.0, place), (value, place), COLOURS[at % len(COLOURS)], 26.0)
        panel.label((value, place), f"{name} {column.shown(value)}")
    return panel
