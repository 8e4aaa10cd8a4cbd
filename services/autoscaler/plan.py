"""How an autoscaler is run: the flags of `baton autoscaler run`, checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from services.autoscaler.kube.seat import Place
from services.autoscaler.view import ROLES, Promise, Role, RoleView, View
from shared.errors import SettingsError

Mode = Literal["advise", "builtin"]
RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class Plan:
    """One autoscaler."""

    mode: Mode
    view: View
    """its roles with their limits, promise and budget; the rest is seen"""
    place: Place
    pool: str
    every_s: float
    host: str
    port: int


def plan_of(options: Mapping[str, Any]) -> Plan:
    """SettingsError that names the flag. `--decode` without `--prefill`: a cell of topology agg."""
    deployments: dict[Role, str] = {role: options[role] for role in ROLES if options[role]}
    if deployments and not options["release"]:
        raise SettingsError("--release: name the chart's release that the deployments are of")
    if options["mode"] == "builtin" and not deployments:
        raise SettingsError(
            "--mode builtin orders replicas: name --prefill and --decode, or --decode alone where "
            "its workers compute prompts too"
        )
    if deployments and "decode" not in deployments:
        raise SettingsError("--prefill: name the Deployment of the decode workers too, by --decode")
    view = View(
        now_s=0.0,
        roles={role: _role(role, options) for role in deployments or ROLES},
        promise=Promise(
            options["slo_ttft_ms"] / 1000, options["slo_gap_ms"] / 1000, options["slo_target"]
        ),
        max_gpus=options["max_gpus"] or None,
    )
    kubeconfig = options["kubeconfig"]
    return Plan(
        mode=options["mode"],
        view=view,
        place=Place(
            deployments,
            options["release"],
            options["namespace"],
            Path(kubeconfig) if kubeconfig else None,
        ),
        pool=options["pool"],
        every_s=options["every_s"],
        host=options["host"],
        port=options["port"],
    )


def _role(role: Role, options: Mapping[str, Any]) -> RoleView:
    text = options[f"{role}_replicas"]
    found = RANGE.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise SettingsError(f"--{role}-replicas: {text!r} is not LEAST-MOST, as 1-4")
    least, most = int(found[1]), int(found[2])
    return RoleView(least, least, most, num_gpus=options[f"{role}_gpus"])
