"""`python -m tests.chart.generate`: rewrites what the chart holds that is made from other files.

The settings in values.schema.json come from shared/settings/groups.py, the table in helm/README.md
from values.yaml and the schema, tests/chart/golden from the chart itself. Tests keep them equal.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from shared.settings.load import EVERY_SETTING
from shared.settings.setting import SECRETS, Setting, helm_name
from tests.chart.release import CHART, Release, render
from tests.chart.value_sets import VALUE_SETS
from tests.rules.sources import ROOT

NOTE = "written by `python -m tests.chart.generate`"
GOLDEN = ROOT / "tests/chart/golden"
GOLDEN_SETS = ("default", "everything")
PORTS = frozenset({"port", "admin_port", "worker_port", "transfer_port", "probe_port"})
"""in a pod no port is picked, and none is privileged"""
LOWEST_PORT = 1024
TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def schema_with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with today's settings in it."""
    properties = {
        helm_name(item.name): _setting(item) for item in EVERY_SETTING if item.name not in SECRETS
    }
    description = f"settings of Baton; {NOTE}"
    settings = {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "properties": properties,
    }
    return {**schema, "definitions": {**schema["definitions"], "settings": settings}}


def _setting(item: Setting) -> dict[str, Any]:
    low = LOWEST_PORT if item.name in PORTS else item.low
    rule: dict[str, Any] = {
        "type": TYPES[item.kind],
        "description": item.help,
        "minimum": low,
        "maximum": item.high,
        "enum": list(item.choices) or None,
    }
    return {name: value for name, value in rule.items() if value is not None}


def readme_with_table(readme: str, schema: dict[str, Any], values: dict[str, Any]) -> str:
    begin, end = f"<!-- values: {NOTE} -->\n", "<!-- end of values -->\n"
    before, found, rest = readme.partition(begin)
    _, mark, after = rest.partition(end)
    assert found and mark, "helm/README.md has lost its marks"
    rows = "".join(_rows(schema, values, schema["definitions"]))
    return f"{before}{begin}| value | default | meaning |\n|---|---|---|\n{rows}{end}{after}"


def _rows(
    node: dict[str, Any], values: Any, definitions: dict[str, Any], path: str = ""
) -> Iterator[str]:
    """A row for every leaf. Workers have the same values: decode's are not told twice."""
    for name, given in node["properties"].items():
        here = f"{path}.{name}" if path else name
        rule = {**_resolved(given, definitions), **given}
        value = values.get(name) if isinstance(values, dict) else None
        if name == "global":
            continue
        if name == "settings":
            yield f"| `{here}` | {_shown(value)} | settings, see below |\n"
        elif here == "decode":
            yield "| `decode.*` | | as `prefill.*`, without `enabled` |\n"
        elif "properties" in rule and name != "strategy":
            yield from _rows(rule, value, definitions, here)
        else:
            yield f"| `{here}` | {_shown(value)} | {rule.get('description', '')} |\n"


def _resolved(rule: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    reference = rule.get("$ref", "").removeprefix("#/definitions/")
    found: dict[str, Any] = definitions.get(reference, {})
    return found


def _shown(value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`".replace("|", "\\|")


def golden_text(release: Release) -> str:
    """All objects in order."""
    objects = sorted(release.objects, key=lambda o: (o["kind"], o["metadata"]["name"]))
    text: str = yaml.safe_dump_all(objects, sort_keys=True, width=100)
    return text


def main() -> int:
    schema_path, readme_path = CHART / "values.schema.json", CHART / "README.md"
    schema = schema_with_settings(json.loads(schema_path.read_text(encoding="utf-8")))
    schema_path.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    readme = readme_with_table(readme_path.read_text(encoding="utf-8"), schema, values)
    readme_path.write_text(readme, encoding="utf-8")
    GOLDEN.mkdir(exist_ok=True)
    for name in GOLDEN_SETS:
        text = golden_text(render(VALUE_SETS[name]))
        (GOLDEN / f"{name}.yaml").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
