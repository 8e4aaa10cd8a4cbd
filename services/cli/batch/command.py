"""`baton batch run IN OUT`: answers a file of requests in OpenAI's batch format."""

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from services.cli.batch.batch import Batch
from services.cli.batch.input_file import STANDARD_INPUT, InputFile
from services.cli.batch.output_file import OutputFile
from services.cli.batch.progress import BatchProgress
from services.cli.bench.measure import progress_line
from services.cli.cluster.local_cell import (
    finished,
    running,
    stop_signals,
    this_machine,
)
from services.cli.cluster.model_check import check_model
from services.cli.cluster.output import Output
from services.cli.cluster.plan import make_plan
from services.cli.gateway_client import GatewayClient, gateway_url
from shared.errors import SettingsError

CONCURRENCY = 64
STOPPED = 130
"""exit code, as a shell's of what SIGINT ended"""
TIMEOUT_S = 3600.0
"""for one answer, of which nothing comes before its end"""
EPILOG = (
    "Each line of IN is {custom_id, method: POST, url: /v1/chat/completions or /v1/completions, "
    "body}; each of OUT {id, custom_id, response: {status_code, request_id, body}, error}, in the "
    "order in which they come. A line that is no request, or whose custom_id is there twice, is "
    "refused before the first is sent. Killed and run again it goes on: each line is answered "
    "once. Exit code: 0 all are answered with 200; 1 all are answered, some with another status; 2 "
    "a flag or a line is wrong, or IN has no request; 4 nothing answers; 130 Ctrl-C or SIGTERM "
    "stopped it"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("action", choices=("run",), help="run: answer IN into OUT")
    parser.add_argument(
        "input",
        type=Path,
        metavar="IN",
        help="JSON lines of requests; a pipe too; - is the standard input",
    )
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
    batch: Batch | None = None
    with suppress(KeyboardInterrupt), _sigterm_interrupts():
        batch = _run(arguments)
    if batch is None or batch.num_answered < batch.num_waiting:
        progress_line.keep("stopped; run the same command to go on")
        return STOPPED
    return 1 if batch.num_failed else 0


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: argparse.Namespace) -> Batch | None:
    """None: it was stopped before a line was asked for."""
    with InputFile(arguments.input) as source, _output(source, arguments.output) as target:
        if arguments.model is not None:
            return asyncio.run(_in_cell(arguments.model, source, target, arguments.concurrency))
        batch = _batch(gateway_url(arguments.url), source, target, arguments.concurrency)
        with suppress(KeyboardInterrupt):
            _answer(batch, len(target.answered))
        return batch


def _output(source: InputFile, path: Path) -> OutputFile:
    if path == STANDARD_INPUT:
        raise SettingsError("OUT: a batch goes on from its output; name a file")
    if source.lies_at(path):
        raise SettingsError(f"{path}: IN and OUT are the same file; name another OUT")
    return OutputFile(path, source.custom_ids, source.answer_id)


def _batch(url: str, source: InputFile, target: OutputFile, concurrency: int) -> Batch:
    return Batch(GatewayClient(url, TIMEOUT_S), source, target, concurrency)


def _answer(batch: Batch, num_before: int) -> None:
    progress = BatchProgress(batch, num_before)
    progress.begin()
    try:
        if batch.num_waiting:
            batch.run(progress.look)
    finally:
        progress.end()


async def _in_cell(
    model: str, source: InputFile, target: OutputFile, concurrency: int
) -> Batch | None:
    """A cell for the duration, as `baton up` starts one with no other flag. None: it was stopped
    before the cell was ready."""
    plan = make_plan({"model": model, "port": 0}, os.environ, this_machine())
    check_model(plan)
    output, batch = Output(quiet=True), None
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
    return batch
