"""The verdict on a terminal: a line for each rate, each topology's goodput, the sentence."""

from services.cli.bench.verdict.report.point import Point, points_of
from services.cli.bench.verdict.verdict import Verdict

COLUMNS = ("topology", "rate/s", "in limits", "TTFT p50", "p99", "gap p50", "p99", "n")


def render(verdict: Verdict) -> str:
    runs = verdict.contest.runs
    points = [one for name in verdict.contest.rules.sides for one in points_of(name, runs)]
    lines = _table([COLUMNS, *map(_row, points)])
    judgement = verdict.judgement
    lines += [f"goodput of {name}: {judgement.goodput_text(name)}" for name in judgement.goodputs]
    num_invalid = sum(bool(run.invalid) for run in runs)
    lines += [f"note: {note}" for note in verdict.notes]
    if num_invalid:
        lines.append(f"note: {num_invalid} of {len(runs)} runs were INVALID and are left out")
    return "\n".join([*lines, verdict.sentence]) + "\n"


def _row(point: Point) -> tuple[str, ...]:
    times = (point.ttft_ms(0.5), point.ttft_ms(0.99), point.gap_ms(0.5), point.gap_ms(0.99))
    shown = ("-" if ms is None else f"{ms:.1f}" for ms in times)
    num = sum(run.num_sent for run in point.runs)
    return (point.topology, f"{point.rate:g}", f"{point.share:.2%}", *shown, str(num))


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
