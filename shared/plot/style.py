"""The style sheet of the report."""

LIGHT = (
    *("#0072b2", "#d55e00", "#009e73", "#b0478f", "#b07a00"),
    *("#2b9bd8", "#6a51a3", "#8c564b", "#b3261e", "#556472"),
)
DARK = (
    *("#63b0ee", "#ff9d5c", "#4fd0a4", "#e892c8", "#f0c04e"),
    *("#9adcff", "#b9a6ea", "#d0a090", "#ff8278", "#9aa9b6"),
)
"""by number, each told apart from its ground and from the others"""


def _variables(colours: tuple[str, ...], page: str) -> str:
    return page + "".join(f"--c{at}:{colour};" for at, colour in enumerate(colours))


_CLASSES = "".join(
    f".s{at}{{stroke:var(--c{at})}}.f{at}{{fill:var(--c{at})}}.k{at}{{background:var(--c{at})}}"
    for at in range(len(LIGHT))
)
STYLE = (
    ":root{color-scheme:light dark;"
    + _variables(
        LIGHT, "--ground:#f4f6f8;--card:#fff;--line:#d9dfe5;--text:#16202a;--soft:#556472;"
    )
    + "}@media (prefers-color-scheme:dark){:root{"
    + _variables(
        DARK, "--ground:#10161c;--card:#182129;--line:#2c3842;--text:#e6edf3;--soft:#9aa9b6;"
    )
    + "}}"
    "body{margin:0 auto;padding:16px;max-width:1060px;background:var(--ground);color:var(--text);"
    "font:14px/1.45 system-ui,sans-serif;font-variant-numeric:tabular-nums}"
    "h1{font-size:20px}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px}dt{color:var(--soft)}"
    "dd{margin:0}"
    "table,figure{background:var(--card);border:1px solid var(--line);border-radius:8px;"
    "margin:14px 0;padding:10px 14px}"
    "table{border-spacing:16px 4px}th{text-align:left;font-weight:600}td{text-align:right}"
    "figcaption{font-weight:600;margin-bottom:6px}"
    "svg{width:100%;height:auto;max-height:420px}"
    "svg text{fill:var(--text);font-size:12px}"
    "polyline{fill:none;stroke-width:2}.rule{stroke:var(--line)}"
    ".frame{fill:none;stroke:var(--soft)}"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 16px;margin:4px 0 0;color:var(--soft)}"
    ".legend i{display:inline-block;width:14px;height:4px;margin-right:6px;vertical-align:middle}"
    + _CLASSES
)
