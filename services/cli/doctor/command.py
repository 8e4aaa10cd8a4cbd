"""`baton doctor`: looks at this machine, or at a running cell, and says what keeps it from serving.

Without --url: this machine, the model, each cell that `baton up` runs here, and the workers at
--redis if one is named. With --url: the cell behind that gateway. With --worker: this machine, as
that worker will find it.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from services.cli.bench.measure.result_files import check_files
from services.cli.cluster.run_file import RunRecord, records_here
from services.cli.doctor.cell import WaysIn, check_cell
from services.cli.doctor.finding import Section, exit_code, json_lines, render
from services.cli.doctor.gateway import TIMEOUT_S
from services.cli.doctor.machine import check_machine
from services.cli.doctor.model import check_model
from services.cli.flags import add_settings, given_settings, refuse_settings
from services.cli.gateway_client import URL_VARIABLE, GatewayClient, gateway_url
from services.cli.terminal import terminal_width
from shared.errors import SettingsError
from shared.settings.groups import Settings
from shared.settings.load import load_settings

EPILOG = "give the flags of `baton up` or `baton serve`. Exit code 1: something is marked FAIL"
POLL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_settings(parser)
    parser.add_argument("--url", metavar="U", help="look at the cell behind this gateway instead")
    parser.add_argument(
        "--wait-s",
        type=float,
        metavar="N",
        help="with --url: first wait until the gateway is ready, at most N seconds",
    )
    parser.add_argument(
        "--worker",
        choices=("prefill", "decode"),
        help="look at this machine as `baton serve ROLE` will find it: one worker, and no cell",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="JSON lines; - is the output")
    refuse_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    check_files(arguments.json, None)
    settings = load_settings(given_settings(arguments), os.environ)
    if arguments.worker:
        if arguments.url or arguments.wait_s is not None:
            raise SettingsError("--worker looks at no cell: leave --url and --wait-s out")
        sections = _of_machine(settings, [], arguments.worker)
    else:
        sections = _sections(arguments, settings)
    if arguments.json != Path("-"):
        sys.stdout.write(render(sections, terminal_width()))
    if arguments.json is not None:
        _write(arguments.json, json_lines(sections))
    return exit_code(sections)


def _sections(arguments: argparse.Namespace, settings: Settings) -> list[Section]:
    records = records_here()
    if arguments.url or os.environ.get(URL_VARIABLE):
        url = gateway_url(arguments.url)
        _wait_until_ready(url, arguments.wait_s or 0)
        return [_of_cell(WaysIn.given(url, settings, records))]
    if arguments.wait_s is not None:
        raise SettingsError("--wait-s waits for a gateway: name it with --url")
    sections = _of_machine(settings, records)
    sections += [_of_cell(WaysIn.of_record(record)) for record in records]
    if not settings.cell.embedded_redis:
        sections.append(_of_cell(WaysIn.given("", settings, records)))
    return sections


def _wait_until_ready(url: str, limit_s: float) -> None:
    """Returns when time is up too: what is wrong then is for the checks to say."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and not GatewayClient(url, TIMEOUT_S).ready():
        time.sleep(POLL_S)


def _of_machine(settings: Settings, records: list[RunRecord], worker: str = "") -> list[Section]:
    machine = check_machine(settings, records, worker)
    model = check_model(settings, machine.device_type, machine.memory, for_gateway=not worker)
    return [
        Section("this machine", machine.findings),
        Section(f"model {settings.model.name}", tuple(model)),
    ]


def _of_cell(ways: WaysIn) -> Section:
    title = f"cell {ways.url}" if ways.url else "cell of --redis"
    return Section(title, tuple(check_cell(ways)))


def _write(path: Path, text: str) -> None:
    if path == Path("-"):
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")
