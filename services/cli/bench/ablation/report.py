"""The table, the factors below it, and the picture."""

from collections.abc import Sequence

from services.cli.bench.ablation.measurement import GRAPHS
from services.cli.bench.ablation.row import NOT_MULTIPLIED, Factor, Row
from services.cli.bench.serve.report.svg import COLOURS, Panel, picture
from shared.plot.axis import Axis

COLUMNS = ("", "tok/s", "ms/token", "speed-up", "KV kept, bytes")
NO_GPU = f"{GRAPHS}: not run, as there is no GPU\n"
LABEL_SPACE = 1.5
"""the axis is this much longer than its longest bar, for what is written next to it"""


def render_text(rows: Sequence[Row], found: Sequence[Factor]) -> str:
    """For a terminal."""
    base = rows[0].tokens_a_second
    cells = [COLUMNS]
    cells += [
        (
            row.name,
            f"{row.tokens_a_second:,.1f}",
            f"{row.gap_s * 1e3:.3f}",
            f"{row.tokens_a_second / base:.2f}x",
            f"{row.kept_bytes:,}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = ""
    for name, *others in cells:
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        text += "  ".join([name.ljust(widths[0]), *padded]) + "\n"
    if all(row.name != GRAPHS for row in rows):
        text += NO_GPU
    text += "\n"
    for factor in found:
        shown = f"{factor.value:,.1f} {factor.unit}" if factor.unit else f"{factor.value:.1%}"
        text += f"{factor.name:9}{shown:>14}  {factor.text}\n"
    return f"{text}{NOT_MULTIPLIED}\n"


def render_svg(rows: Sequence[Row], model: str) -> str:
    """Tokens a second and the time of a token, a bar for each row."""
    rates = [row.tokens_a_second for row in rows]
    times_ms = [row.gap_s * 1e3 for row in rows]
    panels = [
        _panel("Tokens a second, all sequences together", "tok/s", rows, rates, left=40),
        _panel("From token to token of one sequence", "ms", rows, times_ms, left=530),
    ]
    return picture(f"{model}: what each part brings", panels, 1010, 400)


def _panel(
    title: str, unit: str, rows: Sequence[Row], values: Sequence[float], left: float
) -> Panel:
    panel = Panel(
        title,
        Axis(unit, 0.0, LABEL_SPACE * max(values)),
        Axis("", 0.0, float(len(rows)), bare=True),
        left=left,
        top=80,
        width=440,
        height=260,
    )
    for at, (row, value) in enumerate(zip(rows, values, strict=True)):
        place = len(rows) - at - 0.5
        panel.bar((0.0, place), (value, place), COLOURS[at % len(COLOURS)], 26.0)
        panel.label((value, place), f"{row.name} {value:,.1f}")
    return panel
