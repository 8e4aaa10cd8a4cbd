"""A report: one HTML file that needs nothing else, light or dark as its reader's system is."""

from collections.abc import Iterable, Sequence
from html import escape

from shared.plot.chart import Chart
from shared.plot.style import STYLE


def page(title: str, facts: Iterable[tuple[str, str]], parts: Iterable[str]) -> str:
    """The whole file. `facts`: what was measured and how, each (what, value); `parts`: HTML."""
    listed = "".join(f"<dt>{escape(what)}</dt><dd>{escape(value)}</dd>" for what, value in facts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"<dl>{listed}</dl>\n{''.join(parts)}\n</body>\n</html>\n"
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first cell of a row is its head."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>\n"


def figure(caption: str, chart: Chart) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart.render()}</figure>\n"
