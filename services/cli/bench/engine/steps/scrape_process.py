"""What a worker's io process does for a scraper, without the worker: renders its metrics.

`python -m services.cli.bench.engine.steps.scrape_process HZ`: a report of the engine on each line
of its input, the newest rendered HZ times a second; at the end of the input, how often and how
much.
Imports no torch, as an io process does not.
"""

import json
import os
import select
import sys
import time
from collections.abc import Iterator

from shared.errors import MissingError
from shared.protocol import Load

CHUNK = 65536
READY = b"ready\n"


def main(arguments: list[str]) -> int:
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415
    except ImportError:
        return MissingError.exit_code
    from shared.telemetry.worker_metrics import WorkerCollector, WorkerSample  # noqa: PLC0415

    samples: list[WorkerSample] = []
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: samples, dict))
    sys.stdout.write(READY.decode())
    sys.stdout.flush()
    num_scrapes = num_bytes = 0
    for line in _newest_lines(1 / float(arguments[0])):
        report = json.loads(line)
        load = Load(room_tokens=0, queued_tokens=0, **report["load"])
        samples[:] = [WorkerSample("bench", "decode", load, report["counters"])]
        num_bytes += len(generate_latest(registry))
        num_scrapes += 1
    sys.stdout.write(json.dumps({"num_scrapes": num_scrapes, "num_bytes": num_bytes}) + "\n")
    return 0


def _newest_lines(interval_s: float) -> Iterator[bytes]:
    """The last whole line of the input at each interval, until it ends."""
    newest, rest = b"", b""
    due_s = time.monotonic()
    while True:
        wait_s = due_s - time.monotonic()
        if wait_s <= 0 and newest:
            yield newest
            due_s += interval_s
            continue
        ready, _, _ = select.select([0], [], [], max(wait_s, 0.0) if newest else None)
        if ready:
            received = os.read(0, CHUNK)
            if not received:
                return
            *lines, rest = (rest + received).split(b"\n")
            newest = lines[-1] if lines else newest


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
