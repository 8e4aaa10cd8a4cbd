"""`baton batch run IN OUT`: answers a file of requests in OpenAI's batch format."""

import argparse
import asyncio
import os
from pathlib import Path

from services.cli.batch.batch import Batch
from services.cli.batch.input_file import InputFile
from services.cli.batch.output_file import OutputFile
from services.cli.batch.progress import BatchProgress
from services.cli.cluster.local_cell import (
    check_model,
    finished,
    running,
    stop_signals,
    this_machine,
)
from services.cli.cluster.output import Output
from services.cli.cluster.plan import make_plan
from services.cli.gateway_client import GatewayClient, gateway_url
from shared.errors import SettingsError

CONCURRENCY = 64
TIMEOUT_S = 3600.0
"""for one answer, of which nothing comes before its end"""
EPILOG = (
    "Each line of IN is {custom_id, method: POST, url: /v1/chat/completions or /v1/completions, "
    "body}; each of OUT {id, custom_id, response: {status_code, request_id, body}, error}, in the "
    "order in which they come. A line that is no request, or whose custom_id is there twice, is "
    "refused before the first is sent. Killed and run again it goes on: each line is answered once."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("action", choices=("run",), help="run: answer IN into OUT")
    parser.add_argument("input", type=Path, metavar="IN", help="JSON lines of requests")
    parser.add_argument("output", type=Path, metavar="OUT", help="what is answered is there")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", metavar="U", help="default: $BATON_URL, else 127.0.0.1:8000")
    where.add_argument(
        "--model",
        metavar="DIR|HUB_ID",
        help="start a cell of this model on this machine and stop it in the end; other settings "
        "from variables, as for `baton up`",
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=CONCURRENCY,
        metavar="N",
        help=f"lines under way at once; {CONCURRENCY}",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.concurrency < 1:
        raise SettingsError("--concurrency: at least 1")
    with (
        InputFile(arguments.input) as source,
        OutputFile(arguments.output, source.custom_ids) as target,
    ):
        if arguments.model is None:
            url = gateway_url(arguments.url)
            _answer(_batch(url, source, target, arguments.concurrency), len(target.answered))
        else:
            asyncio.run(_in_cell(arguments.model, source, target, arguments.concurrency))
    return 0


def _batch(url: str, source: InputFile, target: OutputFile, concurrency: int) -> Batch:
    return Batch(GatewayClient(url, TIMEOUT_S), source, target, concurrency)


def _answer(batch: Batch, num_before: int) -> None:
    progress = BatchProgress(batch, num_before)
    try:
        if batch.num_waiting:
            batch.run(progress.look)
    finally:
        progress.end()


async def _in_cell(model: str, source: InputFile, target: OutputFile, concurrency: int) -> None:
    """A cell for the duration, as `baton up` starts one with no other flag."""
    plan = make_plan({"model": model, "port": 0}, os.environ, this_machine())
    check_model(plan.settings.model, plan.settings.compute.max_model_len, plan.tps)
    output = Output(quiet=True)
    async with stop_signals() as stop:
        output.say(f"starting {plan.summary}")
        async with running(plan, output, restart=True) as cell:
            if await finished(cell.wait_ready(), stop):
                output.flush()
                batch = _batch(cell.url, source, target, concurrency)
                answering = asyncio.to_thread(_answer, batch, len(target.answered))
                try:
                    await finished(answering, stop)
                finally:
                    batch.stop()
            output.say("stopping")
