"""`baton serve gateway|prefill|decode`: one process, as `baton up` and a pod run it."""

import argparse

from services.cli.flags import add_settings, given_settings, refuse_settings
from shared.process import die_with_parent, import_whole
from shared.settings.load import load_settings

SERVICES = {
    "gateway": "services.gateway.main",
    "prefill": "services.prefill.main",
    "decode": "services.decode.main",
}
"""role -> the module whose `run(settings) -> int` is the process; imported only when it runs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("role", choices=SERVICES, help="which process to be")
    parser.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)
    add_settings(parser)
    refuse_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.parent_pid is not None:
        die_with_parent(arguments.parent_pid)
    settings = load_settings(given_settings(arguments))
    code: int = import_whole(SERVICES[arguments.role]).run(settings)
    return code
