"""`baton up`: Redis, a gateway and workers on this machine, until a signal stops them."""

import argparse
import asyncio
import os
from pathlib import Path

from services.cli.cluster.detach import start_detached
from services.cli.cluster.local_cell import (
    finished,
    running,
    stop_signals,
    this_machine,
)
from services.cli.cluster.model_check import check_model
from services.cli.cluster.output import Output
from services.cli.cluster.plan import Machine, Plan, WorkerRole, make_plan
from services.cli.flags import add_settings, given_settings, refuse_settings
from shared.errors import BatonError
from shared.settings.load import said_of_preset

SETTINGS = (
    "model",
    "random_weights",
    "served_model_name",
    "tool_parser",
    "reasoning_parser",
    "host",
    "port",
    "redis",
    "kv_blocks",
    "block_size",
    "max_model_len",
    "dtype",
    "gpu_memory_utilization",
    "kv_memory_mib",
    "preset",
    "profile",
    "tune",
    "max_num_seqs",
    "eager",
    "device",
    "tp",
    "threads",
    "transport",
)
"""the settings `up` has flags for: what the model and the machine ask for. Every other one is read
from the environment, so that the help stays short. `--threads` defaults to
max(1, cores // ranks) here: torch's own default makes workers fight for cores"""

DEFAULTS = {"threads": "max(1, cores // ranks of all workers)"}

EPILOG = "every other setting is read from its variable; `baton serve --help-all` lists them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    help_all = add_settings(parser, SETTINGS, DEFAULTS)
    parser.add_argument(
        "--topology",
        choices=("pd", "agg"),
        help="prefill and decode apart, or together; default: pd on a CPU, and on GPUs that copy "
        "from each other's memory",
    )
    half = "default: half of the GPUs, or 1"
    parser.add_argument("--prefill", type=int, metavar="N", help=f"prefill workers; {half}")
    parser.add_argument(
        "--decode", type=int, metavar="M", help=f"decode workers; {half}; with agg all GPUs"
    )
    for role in ("prefill", "decode"):
        parser.add_argument(
            f"--{role}-tp", type=int, metavar="N", help=f"--tp of {role} workers; default: --tp"
        )
    restart = parser.add_argument(
        "--restart",
        choices=("always", "never"),
        default="always",
        help="whether a dead process is started again; default: always",
    )
    help_all.alone_shows(restart)
    parser.add_argument("--log-dir", type=Path, metavar="D", help="one log file per process here")
    parser.add_argument("--detach", action="store_true", help="return once everything is ready")
    parser.add_argument("--notify-fd", type=int, help=argparse.SUPPRESS)
    refuse_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    plan = plan_for(arguments, this_machine())
    check_model(plan)
    if arguments.detach:
        return start_detached(arguments.command_line, arguments.log_dir)
    output = Output(log_folder=arguments.log_dir, notify_fd=arguments.notify_fd)
    try:
        asyncio.run(_serve(plan, output, restart=arguments.restart == "always"))
    except BatonError as error:
        output.failed(error.exit_code, str(error))
        raise
    return 0


def plan_for(arguments: argparse.Namespace, machine: Machine) -> Plan:
    role_tp: dict[WorkerRole, int | None] = {
        "prefill": arguments.prefill_tp,
        "decode": arguments.decode_tp,
    }
    return make_plan(
        given_settings(arguments),
        os.environ,
        machine,
        topology=arguments.topology,
        num_prefill=arguments.prefill,
        num_decode=arguments.decode,
        role_tp={role: tp for role, tp in role_tp.items() if tp is not None},
    )


async def _serve(plan: Plan, output: Output, *, restart: bool) -> None:
    async with stop_signals() as stop:
        output.say(f"starting {plan.summary}")
        for line in said_of_preset(plan.settings):
            output.say(line)
        async with running(plan, output, restart=restart) as cell:
            if await finished(cell.wait_ready(), stop):
                output.ready(cell.url, cell.page)
                await finished(cell.supervisor.watch(), stop)
            output.say("stopping")
