"""`baton down`: stops what `baton up` started, and waits until it has stopped."""

import argparse
import os
import select
import sys
from pathlib import Path

from services.cli.cluster.run_file import RunRecord, live_records, terminate
from shared.errors import BatonError, NoGatewayError, SettingsError
from shared.runtime_folder import runtime_folder

PATIENCE_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--port", type=int, metavar="P", help="the one whose gateway has this port")
    which.add_argument("--all", action="store_true", help="every one of this user")


def run(arguments: argparse.Namespace) -> int:
    folder = runtime_folder()
    for record in choose(live_records(folder), arguments.port, every=arguments.all):
        _stop(record, folder)
    return 0


def choose(records: list[RunRecord], port: int | None, *, every: bool) -> list[RunRecord]:
    """Which to stop: the named port, all, or the only one that runs.

    NoGatewayError when there is none, SettingsError when it is not clear which.
    """
    if every:
        return records
    if port is not None:
        records = [record for record in records if record.port == port]
    if not records:
        where = "" if port is None else f" on port {port}"
        raise NoGatewayError(f"no `baton up` runs{where}")
    if len(records) > 1:
        ports = ", ".join(str(record.port) for record in records)
        raise SettingsError(f"several run, on ports {ports}: name one with --port, or --all")
    return records


def _stop(record: RunRecord, folder: Path) -> None:
    pidfd = terminate(record)
    if pidfd is not None:
        try:
            ended, _, _ = select.select([pidfd], [], [], PATIENCE_S)
        finally:
            os.close(pidfd)
        if not ended:
            raise BatonError(f"pid {record.pid} did not stop in {PATIENCE_S:g} s")
    live_records(folder)
    sys.stdout.write(f"stopped {record.url}\n")
