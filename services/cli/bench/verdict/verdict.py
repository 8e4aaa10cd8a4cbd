"""A contest with its verdict: all that the report shows, and the file that it can be made from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.verdict.contest import Contest, ContestRules
from services.cli.bench.verdict.judgement import Judgement, judge
from services.cli.bench.verdict.sentence import price_of, sentence
from services.cli.bench.verdict.topology_run import TopologyRun
from shared.errors import SettingsError


@dataclass(frozen=True)
class Verdict:
    """What was asked, what was measured, and what is said of it."""

    environment: Mapping[str, Any]
    """machine, versions, command, and what each endpoint told"""
    load: str
    """in words"""
    limits: ServiceLimits
    contest: Contest
    notes: Sequence[str] = ()
    """what a reader of the figures has to know"""

    @cached_property
    def judgement(self) -> Judgement:
        rules = self.contest.rules
        return judge(self.contest.entries, rules.seeds, rules.wanted)

    @property
    def sentence(self) -> str:
        price = price_of(self.judgement, self.contest.runs)
        return sentence(self.judgement, self.limits.text, price)

    def record(self) -> dict[str, Any]:
        """The file. What is judged is in `runs`; the rest of `judgement` follows from it."""
        return {
            "kind": "verdict",
            "environment": self.environment,
            "load": self.load,
            "limits": asdict(self.limits),
            "rules": asdict(self.contest.rules),
            "notes": list(self.notes),
            "judgement": {**asdict(self.judgement), "sentence": self.sentence},
            "runs": [run.record() for run in self.contest.runs],
        }

    @property
    def json(self) -> str:
        return json.dumps(self.record()) + "\n"


def read_verdict(path: Path) -> Verdict:
    """SettingsError for a file that is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        rules = ContestRules(**record["rules"])
        runs = [TopologyRun.of_record(run) for run in record["runs"]]
        limits = ServiceLimits(**record["limits"])
        return Verdict(
            record["environment"], record["load"], limits, Contest(rules, runs), record["notes"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        wanted = "a file that `baton bench verdict --json` wrote"
        raise SettingsError(f"--from {path}: {wanted} ({error})") from error
