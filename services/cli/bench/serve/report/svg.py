"""A small chart in SVG: axes with ticks, lines, steps and bars. Needs no package."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from shared.plot.axis import Axis, Point

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""told apart with any colour vision"""
INK, FAINT = "#333333", "#e4e4e4"


@dataclass
class Panel:
    """One chart at a place of the picture."""

    title: str
    x: Axis
    y: Axis
    left: float
    top: float
    width: float = 360.0
    height: float = 240.0
    _parts: list[str] = field(default_factory=list)
    _legend: list[tuple[str, str, bool]] = field(default_factory=list)

    def line(
        self, points: Sequence[Point], colour: str, name: str = "", *, dashed: bool = False
    ) -> None:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in map(self._place, points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'
        )
        if name:
            self._legend.append((name, colour, dashed))

    def bar(self, start: Point, end: Point, colour: str, thickness: float) -> None:
        """A horizontal bar."""
        (x0, y0), (x1, _) = self._place(start), self._place(end)
        self._parts.append(
            f'<rect x="{x0:.1f}" y="{y0 - thickness / 2:.1f}" width="{max(x1 - x0, 0.3):.1f}" '
            f'height="{thickness:.2f}" fill="{colour}"/>'
        )

    def label(self, at: Point, text: str) -> None:
        """To the right of the point."""
        x, y = self._place(at)
        self._parts.append(_text(x + 6, y + 4, text))

    def note(self, name: str, colour: str) -> None:
        """A line of the legend without a line of the chart."""
        self._legend.append((name, colour, False))

    def render(self) -> str:
        frame = f'<rect x="{self.left}" y="{self.top}" width="{self.width}" '
        frame += f'height="{self.height}" fill="none" stroke="{INK}" stroke-width="0.8"/>'
        title = _text(self.left, self.top - 12, self.title, size=13, weight="bold")
        return "\n".join([title, *self._axes(), *self._parts, frame, *self._legend_lines()])

    def _axes(self) -> list[str]:
        parts = []
        bottom = self.top + self.height
        for tick in self.x.ticks:
            at = self.left + self.x.share(tick) * self.width
            parts.append(_rule(at, self.top, at, bottom))
            parts.append(_text(at, bottom + 14, f"{tick:g}", anchor="middle"))
        for tick in self.y.ticks:
            at = bottom - self.y.share(tick) * self.height
            parts.append(_rule(self.left, at, self.left + self.width, at))
            parts.append(_text(self.left - 6, at + 4, f"{tick:g}", anchor="end"))
        parts.append(_text(self.left + self.width / 2, bottom + 30, self.x.label, anchor="middle"))
        middle = self.top + self.height / 2
        parts.append(_upright(self.left - 46, middle, self.y.label))
        return parts

    def _legend_lines(self) -> list[str]:
        parts = []
        top = self.top + self.height - 8 - 15 * len(self._legend)
        right = self.left + self.width - 8
        if self._legend:
            longest = max(len(name) for name, _, _ in self._legend)
            parts.append(
                _ground(right - 30 - 5.6 * longest, top - 6, right + 4, 15 * len(self._legend) + 6)
            )
        for at, (name, colour, dashed) in enumerate(self._legend):
            y = top + 15 * at + 8
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            parts.append(
                f'<line x1="{right - 20}" y1="{y - 4}" x2="{right}" y2="{y - 4}" '
                f'stroke="{colour}" stroke-width="2.5"{dash}/>'
            )
            parts.append(_text(right - 26, y, name, anchor="end", size=10))
        return parts

    def _place(self, point: Point) -> Point:
        x, y = point
        return (
            self.left + self.x.share(x) * self.width,
            self.top + self.height - self.y.share(y) * self.height,
        )


def picture(title: str, panels: Sequence[Panel], width: float, height: float) -> str:
    """The whole file."""
    body = "\n".join(panel.render() for panel in panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="system-ui, sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n'
        f"{_text(24, 28, title, size=15, weight='bold')}\n{body}\n</svg>\n"
    )


def _rule(x0: float, y0: float, x1: float, y1: float) -> str:
    place = f'x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"'
    return f'<line {place} stroke="{FAINT}" stroke-width="0.8"/>'


def _ground(x0: float, y0: float, x1: float, height: float) -> str:
    """Pale, so that text upon lines can be read."""
    place = f'x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="white" fill-opacity="0.8"/>'


def _upright(x: float, y: float, text: str) -> str:
    """Read from below, around (x, y)."""
    return (
        f'<text font-size="11" text-anchor="middle" fill="{INK}" '
        f'transform="translate({x:.1f} {y:.1f}) rotate(-90)">{escape(text)}</text>'
    )


def _text(
    x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="{INK}">{escape(text)}</text>'
    )
