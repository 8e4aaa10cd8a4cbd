"""`baton autoscaler run|explain|simulate`: what scales a cell's pools, what it says, and policies
compared on simulated load."""

import argparse
import importlib
import json
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from services.cli.amount import above_zero
from services.cli.cluster.run_file import RunRecord, records_here
from services.cli.flags import add_settings, given_settings
from services.cli.gateway_client import URL_VARIABLE, gateway_url
from services.cli.terminal import terminal_width, wrapped
from shared.errors import NoGatewayError, SettingsError
from shared.settings.groups import Settings
from shared.settings.load import changed, load_settings

SETTINGS = ("redis", "log_level")
DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 10.0
TOPOLOGIES = ("pd", "agg")
MODES = {
    "advise": "decides and tells, and touches nothing",
    "builtin": "drains workers and orders replicas of Deployments",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_run(actions.add_parser("run", help="run it until SIGTERM"))
    explain = actions.add_parser("explain", help="print the last decision")
    explain.add_argument("--url", default=DEFAULT_URL, metavar="U", help=f"default {DEFAULT_URL}")
    explain.add_argument("--json", action="store_true", help="print its answer as it is")
    _add_simulate(actions.add_parser("simulate", help="compare policies on simulated load"))


def _add_run(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, SETTINGS)
    modes = "; ".join(f"{name}: {text}" for name, text in MODES.items())
    parser.add_argument("--mode", choices=MODES, default="advise", help=f"{modes}; advise")
    parser.add_argument(
        "--pool",
        default="",
        metavar="NAME",
        help="or its model's name, as clients use it; default: the only one that has workers",
    )
    slo = parser.add_argument_group("what users are promised")
    slo.add_argument("--slo-ttft-ms", type=above_zero, default=1000.0, metavar="N")
    slo.add_argument("--slo-gap-ms", type=above_zero, default=50.0, metavar="N")
    slo.add_argument("--slo-target", type=_share, default=0.99, metavar="SHARE")
    limits = parser.add_argument_group("limits")
    for role in ("prefill", "decode"):
        limits.add_argument(f"--{role}-replicas", default="1-4", metavar="LEAST-MOST")
        limits.add_argument(f"--{role}-gpus", type=_whole, default=1, metavar="N")
    limits.add_argument(
        "--max-gpus", type=_whole, default=0, metavar="N", help="of all workers; 0: no limit"
    )
    cluster = parser.add_argument_group("the cluster; without one only workers are seen")
    for role in ("prefill", "decode"):
        cluster.add_argument(f"--{role}", default="", metavar="DEPLOYMENT")
    cluster.add_argument("--release", default="", help="of the chart")
    cluster.add_argument("--namespace", default="", help="default: that of its own pod")
    cluster.add_argument("--kubeconfig", default="", metavar="FILE")
    parser.add_argument("--every-s", type=above_zero, default=15.0, metavar="S")
    parser.add_argument("--host", default="127.0.0.1", help="its page listens there")
    parser.add_argument("--port", type=_whole, default=8080)


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("what arrives")
    load.add_argument(
        "--trace",
        default="azure-code",
        metavar="T",
        help="azure-code, mooncake, or a file as these were published; azure-code",
    )
    load.add_argument(
        "--copies", type=_whole, default=0, metavar="N", help="of the trace at once; 0: as fits"
    )
    load.add_argument("--swing", type=_amount, default=0.7, metavar="S", help="of a day; 0.7")
    load.add_argument("--hours", type=above_zero, default=3.0, metavar="H")
    load.add_argument("--seed", type=_whole, default=1, metavar="N")
    cell = parser.add_argument_group("the cell")
    cell.add_argument("--start-s", type=above_zero, default=90.0, metavar="S", help="of a worker")
    cell.add_argument("--slo-ttft-ms", type=above_zero, default=1000.0, metavar="N")
    cell.add_argument("--slo-gap-ms", type=above_zero, default=50.0, metavar="N")
    cell.add_argument(
        "--topology",
        choices=TOPOLOGIES,
        default="pd",
        help="pd: prefill workers, with --decode decode workers too; agg: workers that do both; pd",
    )
    cell.add_argument("--decode", action="store_true", help="decode workers too")
    cell.add_argument(
        "--budget", type=_whole, default=0, metavar="N", help="GPUs of all workers; 0: no limit"
    )
    parser.add_argument(
        "--policy", action="append", default=[], metavar="P", help="may be repeated; default: some"
    )
    parser.add_argument(
        "--measured",
        default="",
        metavar="FILE",
        help="of `bench serve --json`: simulate that run instead, and say how far off that is",
    )
    parser.add_argument("--sweep", action="store_true", help="more points of the frontier")
    parser.add_argument("--sensitivity", action="store_true", help="other starts and promises")
    parser.add_argument("--out", default="scaling.html", metavar="FILE", help="the report")
    parser.add_argument("--json", action="store_true", help="print the outcomes, not a table")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "explain":
        return _explain(arguments)
    if arguments.action == "simulate":
        simulator = importlib.import_module("services.simulator.main")
        simulated: int = simulator.run(vars(arguments))
        return simulated
    settings = _with_redis(load_settings(given_settings(arguments)))
    autoscaler = importlib.import_module("services.autoscaler.main")
    code: int = autoscaler.run(settings, vars(arguments))
    return code


def _with_redis(settings: Settings) -> Settings:
    """Where no Redis is named, that of a `baton up` here: its password is in its record alone."""
    url = gateway_url(None) if os.environ.get(URL_VARIABLE) else ""
    record = chosen(records_here(), url) if settings.cell.embedded_redis else None
    if record is None:
        return settings
    sys.stderr.write(f"next to the cell that `baton up` runs at {record.url}\n")
    return changed(settings, redis=record.redis)


def chosen(records: Sequence[RunRecord], url: str) -> RunRecord | None:
    """The cell whose gateway is at `url`, or the only one; None: there is none. SettingsError when
    it is not clear which."""
    found = [each for each in records if each.redis and url in ("", each.url, each.admin_url)]
    if len(found) > 1:
        urls = ", ".join(record.url for record in found)
        raise SettingsError(f"several cells run here ({urls}): name one in {URL_VARIABLE}")
    return found[0] if found else None


def _explain(arguments: argparse.Namespace) -> int:
    try:
        with urllib.request.urlopen(  # noqa: S310 -- the user's own URL
            arguments.url.rstrip("/") + "/explain", timeout=TIMEOUT_S
        ) as answer:
            found = json.load(answer)
    except (OSError, ValueError) as error:
        raise NoGatewayError(
            f"no autoscaler answers at {arguments.url} ({error}); name it with --url"
        ) from None
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(rendered(found, terminal_width()))
    return 0


def rendered(answer: Mapping[str, Any], width: int | None = None) -> str:
    """A paragraph for each role."""
    acts = "" if answer["acts"] else ", does not act"
    lines = [f"autoscaler: mode {answer['mode']}{acts}"]
    if answer["holds"]:
        lines.append(f"holds: {answer['holds']}")
    for role, found in answer["roles"].items():
        drains = f"; {', '.join(found['drain'])} drains" if found["drain"] else ""
        lines.append(
            f"{role}: {found['wanted']} wanted, {found['replicas']} ordered, "
            f"{found['registered']} registered{drains}"
        )
        if found["reason"]:
            lines.append(found["reason"])
    return "".join(wrapped(line, width) + "\n" for line in lines)


def _share(text: str) -> float:
    share = above_zero(text)
    if share > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is above 1")
    return share


def _amount(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else above_zero(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)
