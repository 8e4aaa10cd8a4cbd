"""A chart in SVG for a page with its own style sheet: colours are classes, so that it is light or
dark as the page is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from shared.plot.axis import Axis, Point

NUM_COLOURS = 10


@dataclass
class Chart:
    """Drawn part by part."""

    x: Axis
    y: Axis
    height: float = 220.0
    width: float = 900.0
    _parts: list[str] = field(default_factory=list)
    _names: list[tuple[str, int]] = field(default_factory=list)

    def line(self, points: Sequence[Point], colour: int, name: str = "", dash: str = "") -> None:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in map(self._place, points))
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        title = f"<title>{escape(name)}</title>" if name else ""
        self._parts.append(
            f'<polyline class="s{colour}" points="{path}"{dashed}>{title}</polyline>'
        )
        self._name(name, colour)

    def steps(self, points: Sequence[Point], colour: int, name: str = "") -> None:
        """A value stays until the next point."""
        path: list[Point] = []
        for x, y in points:
            if path:
                path.append((x, path[-1][1]))
            path.append((x, y))
        self.line(path, colour, name)

    def dot(self, point: Point, colour: int, name: str, text: str = "") -> None:
        x, y = self._place(point)
        title = f"<title>{escape(text or name)}</title>"
        self._parts.append(
            f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="5">{title}</circle>'
        )
        self._parts.append(_text(x + 8, y - 6, name))

    def bar(self, at: Point, colour: int, width: float) -> None:
        """From the floor to the point."""
        x, y = self._place(at)
        wide = width / (self.x.high - self.x.low) * self.width
        tall = self.height - y
        self._parts.append(
            f'<rect class="f{colour}" x="{x - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" '
            f'height="{max(tall, 0.5):.1f}"/>'
        )

    def span(
        self, start: Point, end: float, colour: int, text: str, *, faint: bool = False
    ) -> None:
        """Level, from the point to `end` on the x axis, nearly one unit of the y axis high."""
        (x0, y), (x1, _) = self._place(start), self._place((end, start[1]))
        high = 0.8 / (self.y.high - self.y.low) * self.height
        opacity = ' fill-opacity="0.25"' if faint else ""
        self._parts.append(
            f'<rect class="f{colour}" x="{x0:.1f}" y="{y - high / 2:.1f}" '
            f'width="{max(x1 - x0, 0.3):.1f}" height="{high:.1f}"{opacity}>'
            f"<title>{escape(text)}</title></rect>"
        )

    def write(self, at: Point, text: str) -> None:
        """Centred there."""
        x, y = self._place(at)
        self._parts.append(_text(x, y - 5, text, "middle"))

    def render(self) -> str:
        """The SVG and, below it, its legend."""
        left, top, right, bottom = 62, 10, 14, 40
        box = f"{-left} {-top} {self.width + left + right:g} {self.height + top + bottom:g}"
        frame = f'<rect class="frame" width="{self.width:g}" height="{self.height:g}"/>'
        legend = "".join(
            f'<span><i class="k{colour}"></i>{escape(name)}</span>' for name, colour in self._names
        )
        body = "\n".join([*self._axes(), *self._parts, frame])
        label = escape(self.y.label)
        return (
            f'<svg viewBox="{box}" role="img" aria-label="{label}">\n{body}\n</svg>\n'
            f'<p class="legend">{legend}</p>'
        )

    def _axes(self) -> list[str]:
        parts = []
        for tick in self.x.ticks:
            x = self.x.share(tick) * self.width
            parts.append(
                f'<line class="rule" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{self.height:g}"/>'
            )
            parts.append(_text(x, self.height + 16, f"{tick:g}", "middle"))
        for tick in self.y.ticks:
            y = self.height * (1 - self.y.share(tick))
            parts.append(
                f'<line class="rule" x1="0" y1="{y:.1f}" x2="{self.width:g}" y2="{y:.1f}"/>'
            )
            parts.append(_text(-6, y + 4, f"{tick:g}", "end"))
        parts.append(_text(self.width / 2, self.height + 34, self.x.label, "middle"))
        turned = f"translate(-46 {self.height / 2:g}) rotate(-90)"
        parts.append(
            f'<text text-anchor="middle" transform="{turned}">{escape(self.y.label)}</text>'
        )
        return parts

    def _name(self, name: str, colour: int) -> None:
        if name and (name, colour) not in self._names:
            self._names.append((name, colour))

    def _place(self, point: Point) -> Point:
        x, y = point
        return self.x.share(x) * self.width, self.height * (1 - self.y.share(y))


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
