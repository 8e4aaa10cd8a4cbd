"""A process that renders metrics while an engine decodes, as a worker's io process keeps up with
its engine and a scraper asks for what it knows.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from services.cli.bench.engine.baton_subject import Watcher
from services.cli.bench.engine.steps import scrape_process
from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.errors import BatonError, MissingError

ROOT = Path(__file__).resolve().parents[5]


@contextlib.contextmanager
def scraping(scrape_hz: float) -> Iterator[Watcher]:
    """A watcher that tells the process of every step; the process ends with the block.

    MissingError without prometheus-client; BatonError if nothing was rendered.
    """
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", scrape_process.__name__, str(scrape_hz)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline() != scrape_process.READY:
        process.communicate()
        raise MissingError("--scrape-hz renders metrics: pip install prometheus-client")
    stdin: IO[bytes] = process.stdin

    def report(engine: Engine, _: StepOutput) -> None:
        line = {"load": asdict(engine.load()), "counters": engine.counters.totals()}
        try:
            stdin.write(json.dumps(line).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise BatonError("the process that renders metrics died") from None

    try:
        yield report
    finally:
        answer, _ = process.communicate()
    if process.returncode or not json.loads(answer)["num_scrapes"]:
        raise BatonError("no metrics were rendered during the decode")
