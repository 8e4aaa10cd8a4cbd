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


def contradicted(
    series: Series, results: Iterable[Result], rules: Mapping[str, Any] | None = None
) -> str:
    """What Prometheus says against it; empty when every result is so. Rules in the form of a rule
    file or of a PrometheusRule's spec are evaluated all the while."""
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
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    every = f"{SCRAPE_S}s"
    test = {"interval": every, "input_series": inputs, "promql_expr_test": expressions}
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder) / "rules.yaml", rules or {"groups": []})
        file = {"rule_files": ["rules.yaml"], "evaluation_interval": every, "tests": [test]}
        _write(Path(folder) / "tests.yaml", file)
        done = subprocess.run(
            ["promtool", "test", "rules", "tests.yaml"],  # noqa: S607
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stdout + done.stderr if done.returncode else ""


def _write(path: Path, file: Mapping[str, Any]) -> None:
    """YAML takes JSON as it is."""
    path.write_text(json.dumps(file), encoding="utf-8")
