"""The flags of `baton bench verdict`."""

import argparse
from pathlib import Path

from services.cli.amount import above_zero
from services.cli.bench.measure.result_files import check_file
from services.cli.bench.serve import flags as load_flags
from services.cli.bench.serve.endpoint import Endpoint
from services.cli.bench.serve.workload import Lengths
from services.cli.bench.verdict.judgement import FEWEST_SEEDS
from services.cli.bench.verdict.search import MOST_POINTS
from services.cli.flags import CELL_SETTINGS, add_settings, given_settings, refuse_settings
from services.cli.gateway_client import gateway_url
from shared.errors import SettingsError

SETTINGS = (*CELL_SETTINGS, "max_num_seqs")
FEWEST_POINTS = 3
DEFAULT_WORKERS = 2
UNUSED = {
    "num_requests": None,
    "ideal_servers": None,
    "prefill_file": None,
    "prefill_ms_per_1k": None,
    "no_ideal": False,
}
"""flags of `bench serve` that are none here"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    threads = "the cores that are left, divided by the workers"
    add_settings(parser, SETTINGS, {"threads": threads})
    _add_cells(parser.add_argument_group("cells that run already"))
    _add_load(parser.add_argument_group("load"))
    load_flags.add_requests(parser.add_argument_group("requests"))
    _add_judgement(parser.add_argument_group("judgement"))
    output = parser.add_argument_group("output").add_argument
    output("--report", type=Path, metavar="FILE.html", help="curves, intervals, every run")
    output("--json", type=Path, metavar="FILE", help="all that was measured; - is the output")
    output("--from", dest="source", type=Path, metavar="FILE", help="judge this --json again")
    parser.set_defaults(**UNUSED)
    refuse_settings(parser)


def _add_cells(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--workers", type=int, metavar="N", help="of each cell that is started here; 2")
    add("--url-pd", metavar="U", help="in place of cells started here: one with prefill workers")
    add("--url-agg", metavar="U", help="and one without, with as many workers")
    load_flags.add_asking(group)


def _add_load(group: argparse._ArgumentGroup) -> None:
    load_flags.add_arrivals(group)
    add = group.add_argument
    add("--duration", type=float, default=30.0, metavar="S", help="of sending, per run; 30")
    add(
        "--seeds",
        type=int,
        default=3,
        metavar="N",
        help=f"runs at each rate, {FEWEST_SEEDS} or more; 3",
    )
    points = f"rates of each topology at most, {FEWEST_POINTS} or more; {MOST_POINTS}"
    add("--points", type=int, default=MOST_POINTS, metavar="N", help=points)
    rate = "first rate, requests/s; default: a quarter of what idle prefill times promise"
    add("--rate", type=above_zero, metavar="R", help=rate)


def _add_judgement(group: argparse._ArgumentGroup) -> None:
    load_flags.add_limits(group)
    share = "share of requests within all limits, up to which a rate is held; 0.99"
    group.add_argument("--attainment", type=float, default=0.99, metavar="X", help=share)


def check(arguments: argparse.Namespace) -> None:
    """SettingsError for what is wrong whatever the cells say."""
    check_outputs(arguments)
    load_flags.read_arrivals(arguments)
    load_flags.read_limits(arguments)
    Lengths.parse(arguments.input, "--input")
    Lengths.parse(arguments.output, "--output")
    if not load_flags.read_service_limits(arguments).stated:
        raise SettingsError("name --ttft-limit-ms, --gap-limit-ms or both: a verdict needs a limit")
    if not 0.5 <= arguments.attainment < 1:
        raise SettingsError(f"--attainment {arguments.attainment:g}: from 0.5 to below 1")
    if arguments.seeds < FEWEST_SEEDS:
        raise SettingsError(f"--seeds {arguments.seeds}: at least {FEWEST_SEEDS}")
    if arguments.points < FEWEST_POINTS:
        raise SettingsError(f"--points {arguments.points}: at least {FEWEST_POINTS}")
    if arguments.shared_prefix < 0 or arguments.warmup < 0:
        raise SettingsError("--shared-prefix and --warmup: 0 or more")


def check_outputs(arguments: argparse.Namespace) -> None:
    check_file("--json", arguments.json)
    check_file("--report", arguments.report, ".html", "the report is an HTML file")


def read_urls(arguments: argparse.Namespace) -> tuple[Endpoint, Endpoint] | None:
    """The cells that run already; None: they are started here."""
    urls = {"--url-pd": arguments.url_pd, "--url-agg": arguments.url_agg}
    if urls["--url-pd"] is None and urls["--url-agg"] is None:
        return None
    missing = [flag for flag, url in urls.items() if url is None]
    if missing:
        raise SettingsError(f"{missing[0]} is missing: name both cells, or none")
    given = {name: value for name, value in given_settings(arguments).items() if name in SETTINGS}
    model = given.pop("model", None)
    if given or arguments.workers is not None:
        flag = "--" + next(iter(given), "workers").replace("_", "-")
        raise SettingsError(f"{flag} is for cells that are started here, not for --url-pd")
    key = load_flags.read_api_key("--api-key", arguments.api_key_env, arguments.api_key_file)
    pd, agg = (
        Endpoint(
            gateway_url(url), arguments.endpoint, key, model, flag.removeprefix("--url-"), flag
        )
        for flag, url in urls.items()
    )
    return pd, agg
