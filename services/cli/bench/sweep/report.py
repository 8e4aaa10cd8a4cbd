"""The table of a sweep, and its picture."""

from collections.abc import Sequence

from services.cli.bench.serve.report.svg import COLOURS, Panel, picture
from services.cli.bench.sweep.knee import Knee
from services.cli.bench.sweep.point import Point
from shared.engine.running.ceilings import Ceilings
from shared.plot.axis import Axis

COLUMNS = ("batch", "tok/s", "ms/token", "utilisation", "of copy rate", "of product rate", "")

DISTURBED = (
    "disturbed: the time per token is not that of the median step; measure again on a quiet machine"
)


def render_text(points: Sequence[Point], knee: Knee, ceilings: Ceilings) -> str:
    """For a terminal."""
    cells = [COLUMNS]
    cells += [
        (
            f"{one.batch}",
            f"{one.rate:,.1f}",
            f"{one.step_s * 1e3:.3f}",
            f"{100 * one.utilisation:.1f} %",
            f"{100 * one.read_share:.1f} %",
            f"{100 * one.product_share:.1f} %",
            _mark(one, knee),
        )
        for one in points
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = "".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in cells
    )
    if any(one.disturbed for one in points):
        text += f"{DISTURBED}\n"
    return f"{text}{said(knee)}\n{measured(ceilings)}\n"


def _mark(point: Point, knee: Knee) -> str:
    marks = ["<- knee"] if knee.reached and point.batch == knee.batch else []
    return ", ".join(marks + ["disturbed"] * point.disturbed)


def said(knee: Knee) -> str:
    """In a sentence."""
    if not knee.reached:
        return f"no knee up to a batch of {knee.batch}: each added sequence still paid"
    return (
        f"the knee is at {knee.batch}: beyond it an added sequence brings less than half of the "
        "tokens/s that one has in the smallest batch"
    )


def measured(ceilings: Ceilings) -> str:
    """What utilisation is a share of."""
    return (
        "utilisation: the least time of a step's reads and products over its time, at rates that "
        f"this run measured here: a copy {ceilings.copy_bytes_per_s / 1e9:,.1f} GB/s, a matrix "
        f"product {ceilings.matmul_flops_per_s / 1e12:,.2f} TFLOP/s"
    )


def render_svg(points: Sequence[Point], knee: Knee, model: str) -> str:
    """Tokens a second, milliseconds a token and utilisation against the batch."""
    rates = [(float(one.batch), one.rate) for one in points]
    times_ms = [(float(one.batch), one.step_s * 1e3) for one in points]
    shares = [(float(one.batch), 100 * one.utilisation) for one in points]
    panels = [
        _panel(points, "Throughput", "tokens/s", 1.1 * max(y for _, y in rates), 80),
        _panel(points, "Time per token", "ms", 1.1 * max(y for _, y in times_ms), 510),
        _panel(points, "Share of the roofline", "%", 110.0, 940),
    ]
    for panel, line in zip(panels, (rates, times_ms, shares), strict=True):
        panel.line(line, COLOURS[0], "measured")
        if knee.reached:
            at = float(knee.batch)
            panel.line(
                [(at, 0.0), (at, panel.y.high)], COLOURS[1], f"knee, {knee.batch}", dashed=True
            )
    return picture(f"{model}: decode by batch size", panels, 1330, 380)


def _panel(points: Sequence[Point], title: str, unit: str, high: float, left: float) -> Panel:
    x = Axis("sequences in the batch", 0.0, 1.02 * points[-1].batch)
    return Panel(title, x, Axis(unit, 0.0, high), left=left, top=80)
