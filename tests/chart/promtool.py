"""Prometheus' own judgement of a query: `promtool test rules` on series written down here."""

import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRAPE_S = 15
"""seconds between two values of a series"""
Series = Mapping[str, str]
"""a series' name and labels -> its values in promtool's notation: `3+0x8 stale` is nine scrapes
that give 3, then a target that is lost"""


@dataclass(frozen=True)
class Result:
    """What a query gives at a time: the values of its series by their labels; none is silence."""

    query: str
    minute: float
    values: Mapping[str, float]


def contradicted(series: Series, results: Iterable[Result]) -> str:
    """What Prometheus says against it; empty when every result is so."""
    expressions = [
        {
            "expr": result.query,
            "eval_time": f"{round(result.minute * 60)}s",
            "exp_samples": [
                {"labels": labels, "value": value} for labels, value in result.values.items()
            ],
        }
        for result in results
    ]
    return _run({"promql_expr_test": expressions}, series)


def _run(test: Mapping[str, Any], series: Series) -> str:
    """YAML takes JSON as it is."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    every = f"{SCRAPE_S}s"
    tests = [{"interval": every, "input_series": inputs, **test}]
    file = {"evaluation_interval": every, "tests": tests}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests.yaml"
        path.write_text(json.dumps(file), encoding="utf-8")
        done = subprocess.run(  # noqa: S603
            ["promtool", "test", "rules", path],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stdout + done.stderr if done.returncode else ""
