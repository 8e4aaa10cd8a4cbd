"""`baton bench gateway`: what the gateway adds and costs, over workers without engines.

A real gateway process, a Redis of its own and real links; the workers answer at once. Needs what
a gateway needs, Linux, and for honest latencies a machine with two free cores.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from services.cli.bench.gateway.cell import MeasuredCell, running_cell
from services.cli.bench.gateway.dispatch import dispatch_times, redis_trips
from services.cli.bench.gateway.stream_cost import (
    EDGE_TOKENS,
    StreamCost,
    StreamLoad,
    measure_streams,
)
from services.cli.bench.measure.environment import allow_many_sockets, machine_record
from services.cli.bench.measure.findings import Finding, faults, render
from services.cli.bench.measure.progress_line import announce, clear
from services.cli.bench.measure.quantiles import Distribution
from shared.errors import BatonError, SettingsError

PARTS = ("streams", "rate", "many", "burst", "path", "redis", "routing", "dispatch")
NUM_STREAMS, NUM_DECODE, STEP_MS = 256, 16, 25.0
BUSY_STEP_MS = 12.0
"""more than half of a core for the gateway: what a token costs when it is not idle in between"""
MANY_STREAMS, MANY_STEP_MS, MANY_S = 2000, 250.0, 20.0
PATH_STEPS = 200
ERRORS = "streams with an error"
ERRORS_OF_MANY = f"errors of {MANY_STREAMS} concurrent streams"
MIN_WINDOW_S = 0.5
"""of all streams open at once: less would tell nothing"""


EPILOG = (
    "parts: streams, what the gateway adds to a token's time; rate, what a token costs it in CPU; "
    "many, 2000 streams at once; burst, one worker with all streams; path, a token's CPU without "
    "sockets; redis, round trips of a request; routing, one decision among 64 workers; dispatch, "
    "from a body read to its first chunk scheduled. A figure is INVALID when the machine or the "
    "client was in the way, twice in a row. Exit code: 0; 1 a stream failed or a figure is "
    "INVALID, with --strict also a missed goal (everything is shown all the same)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    add("--model", default="demo", metavar="NAME", help="whose tokenizer is used; demo")
    add("--streams", type=int, default=NUM_STREAMS, metavar="N", help="open at once; 256")
    add("--workers", type=int, default=NUM_DECODE, metavar="N", help="decode workers; 16")
    add("--step-ms", type=float, default=STEP_MS, metavar="MS", help="a worker's step; 25")
    add("--busy-step-ms", type=float, default=BUSY_STEP_MS, metavar="MS", help="for rate; 12")
    add("--seconds", type=float, default=8.0, metavar="S", help="how long streams run; 8")
    add(
        "--requests",
        type=int,
        default=1000,
        metavar="N",
        help="for dispatch; 20 times as many routing decisions; 1000",
    )
    add("--no-pin", action="store_true", help="leave the cores to the kernel")
    add("--strict", action="store_true", help="exit with 1 when a goal is missed")
    add("--profile", type=Path, metavar="FILE", help="where the CPU of the token path goes")
    add("--json", type=Path, metavar="FILE", help="JSON lines; - is the output")


def run(arguments: argparse.Namespace) -> int:
    if sys.platform != "linux":
        raise SettingsError("baton bench gateway reads /proc: it runs on Linux only")
    sizes = (arguments.streams, arguments.workers, arguments.step_ms, arguments.busy_step_ms)
    if min(*sizes, arguments.seconds, arguments.requests) <= 0:
        raise SettingsError("streams, workers, step times, seconds and requests: more than 0")
    allow_many_sockets()
    parts = tuple(arguments.part or PARTS)
    findings: list[Finding] = []
    try:
        for found in _measurements(arguments, parts):
            findings += found
    finally:  # what was found is shown, also when a later part fails
        clear()
        if findings:
            _report(arguments, findings)
    _judge(findings, strict=arguments.strict)
    return 0


def _judge(findings: Sequence[Finding], *, strict: bool) -> None:
    """Everything was shown: BatonError for failed streams, for INVALID figures, and with `strict`
    for missed goals."""
    failed = [one for one in findings if one.name in (ERRORS, ERRORS_OF_MANY) and one.value]
    others = [one for one in findings if one not in failed]
    found = [f"{one.part}: {one.value:g} of {one.n} streams failed" for one in failed]
    found += faults(others, strict=strict)
    if found:
        raise BatonError("; ".join(found))


def _measurements(arguments: argparse.Namespace, parts: tuple[str, ...]) -> Iterator[list[Finding]]:
    measures: dict[str, Callable[[MeasuredCell, argparse.Namespace], list[Finding]]] = {
        "dispatch": _dispatch,
        "redis": _redis,
        "streams": _streams,
        "rate": _rate,
        "many": _many,
    }
    wanted = [name for name in measures if name in parts]
    if wanted:
        announce("starting a gateway")
        with running_cell(arguments.model, arguments.workers) as cell:
            for name in wanted:
                announce(f"measuring: {name}")
                yield measures[name](cell, arguments)
    if "burst" in parts:
        announce("measuring: burst")
        with running_cell(arguments.model, 1) as cell:
            yield _burst(cell, arguments)
    if "path" in parts:
        announce("measuring: path")
        yield _path(arguments)
    if "routing" in parts:
        announce("measuring: routing")
        yield _routing(arguments)


def _streams(cell: MeasuredCell, arguments: argparse.Namespace) -> list[Finding]:
    load = (arguments.streams, arguments.step_ms, arguments.seconds)
    cost = _run_streams(cell, arguments, load)
    findings = [
        _ms("streams", "added latency p50", cost.added_s, 0.5, 0.35, cost.circumstances),
        _ms("streams", "added latency p99", cost.added_s, 0.99, 2.0),
        Finding("streams", ERRORS, len(cost.failed), "", 0, n=arguments.streams),
        Finding(
            "streams", "  CPU per chunk at this load", cost.us_per_event, "us", n=cost.num_events
        ),
    ]
    return _stamped(findings, cost)


def _rate(cell: MeasuredCell, arguments: argparse.Namespace) -> list[Finding]:
    load = (arguments.streams, arguments.busy_step_ms, arguments.seconds)
    cost = _run_streams(cell, arguments, load)
    note, n = cost.circumstances, cost.num_events
    kernel = "clock ticks of system time: nearly all of it writes chunks to sockets"
    findings = [
        Finding(
            "rate", "SSE chunks/s per core", cost.events_per_core, "1/s", 35_000, ">=", n, note
        ),
        Finding("rate", "CPU per chunk", cost.us_per_event, "us", 35.0, n=n),
        Finding("rate", "  of it in the kernel", cost.system_us_per_event, "us", n=n, note=kernel),
    ]
    return _stamped(findings, cost)


def _many(cell: MeasuredCell, arguments: argparse.Namespace) -> list[Finding]:
    """Correctness under many streams; latencies are shown by the other part."""
    cost = _run_streams(cell, arguments, (MANY_STREAMS, MANY_STEP_MS, MANY_S))
    example = f"; first: {cost.failed[0]}" if cost.failed else ""
    note = f"all open at once for {cost.window_s:.1f} s; {cost.circumstances}{example}"
    return [Finding("many", ERRORS_OF_MANY, len(cost.failed), "", 0, n=MANY_STREAMS, note=note)]


def _burst(cell: MeasuredCell, arguments: argparse.Namespace) -> list[Finding]:
    load = (arguments.streams, arguments.step_ms, arguments.seconds)
    cost = _run_streams(cell, arguments, load)
    note = (
        "all streams on one worker: its frame holds a token of each, so the last chunk waits "
        f"until the others are written. {cost.circumstances}"
    )
    findings = [
        _ms("burst", "  one worker's frame, p50", cost.added_s, 0.5, None, note),
        _ms("burst", "  one worker's frame, p99", cost.added_s, 0.99, None),
    ]
    return _stamped(findings, cost)


def _stamped(findings: list[Finding], cost: StreamCost) -> list[Finding]:
    """Figures of streams that something else disturbed are no figures; errors stay errors."""
    return [one if one.name == ERRORS else replace(one, invalid=cost.fault) for one in findings]


def _run_streams(
    cell: MeasuredCell, arguments: argparse.Namespace, sizes: tuple[int, float, float]
) -> StreamCost:
    """Once more if something else on the machine got into the way; the second run stands."""
    num_streams, step_ms, seconds = sizes
    cost = _run_once(cell, arguments, sizes)
    if cost.window_s < MIN_WINDOW_S:
        announce("the first streams ended before the last had begun; once more, for longer")
        cost = _run_once(cell, arguments, (num_streams, step_ms, 3 * seconds))
    elif cost.fault:
        announce(f"disturbed ({cost.fault}); once more")
        cost = _run_once(cell, arguments, sizes)
    if cost.window_s < MIN_WINDOW_S:
        raise BatonError(
            "the first streams ended before the last had begun: more --seconds or a quieter machine"
        )
    return cost


def _run_once(
    cell: MeasuredCell, arguments: argparse.Namespace, sizes: tuple[int, float, float]
) -> StreamCost:
    num_streams, step_ms, seconds = sizes
    num_tokens = max(round(seconds * 1e3 / step_ms), 3 * EDGE_TOKENS)
    load = StreamLoad(num_streams, num_tokens, step_ms)
    cost = uvloop.run(measure_streams(cell, load, pin=not arguments.no_pin))
    if len(cost.failed) == num_streams:
        raise BatonError(f"every stream failed: {cost.failed[0]}")
    return cost


def _path(arguments: argparse.Namespace) -> list[Finding]:
    module = "services.gateway.measure.token_path"
    sizes = [str(arguments.streams), str(PATH_STEPS)]
    command = [sys.executable, "-m", module, arguments.model, *sizes]
    answer = json.loads(_output(command))
    if arguments.profile is not None:
        _output([*command, str(arguments.profile)])
    note = (
        "the gateway's code in a process of its own, a transport that throws bytes away, frames "
        f"of {arguments.streams} tokens; {answer['writes_per_token']:.2f} writes per token"
    )
    num = arguments.streams * PATH_STEPS
    value = answer["us_per_token"]
    return [Finding("path", "CPU per token without sockets", value, "us", 12.0, n=num, note=note)]


def _redis(cell: MeasuredCell, arguments: argparse.Namespace) -> list[Finding]:
    trips = redis_trips(cell, max(arguments.requests // 5, 1), num_tokens=4)
    note = (
        "commands that name a request, by MONITOR, at most one round trip each; "
        f"{trips.others} others came with time meanwhile (beats, polls)"
    )
    name = "Redis round trips per request"
    return [Finding("redis", name, trips.per_request, "", 2.0, n=trips.num_requests, note=note)]


def _routing(arguments: argparse.Namespace) -> list[Finding]:
    module = "services.gateway.measure.routing"
    answer = json.loads(_output([sys.executable, "-m", module, str(20 * arguments.requests)]))
    times = Distribution.of(answer["times_s"])
    note = (
        f"{answer['workers']} workers, {answer['entries']} index entries, "
        "prompts of 12k tokens, 7 of 10 known"
    )
    return [
        Finding("routing", "routing decision p50", (times.at(0.5) or 0) * 1e6, "us", n=times.n),
        Finding(
            "routing", "routing decision p99", times.tail * 1e6, "us", 50.0, n=times.n, note=note
        ),
    ]


def _dispatch(cell: MeasuredCell, arguments: argparse.Namespace) -> list[Finding]:
    times = dispatch_times(cell, arguments.requests)
    note = "by the gateway's receipts; one request at a time, 200 prompt tokens"
    return [
        _ms("dispatch", "body read to first chunk scheduled p50", times, 0.5, 0.8, note),
        _ms("dispatch", "body read to first chunk scheduled p99", times, 0.99, 3.0),
    ]


def _ms(
    part: str,
    name: str,
    values: Distribution,
    q: float,
    goal: float | None,
    note: str = "",
) -> Finding:
    value = values.at(q)
    if value is None:
        raise BatonError(f"{name}: only {values.n} values; a longer run is needed")
    return Finding(part, name, value * 1e3, "ms", goal, n=values.n, note=note)


def _report(arguments: argparse.Namespace, findings: list[Finding]) -> None:
    environment = machine_record(arguments.command_line)
    lines = [environment, *(finding.record() for finding in findings)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if arguments.json == Path("-"):
        sys.stdout.write(text)
        return
    sys.stdout.write(render(findings))
    sys.stdout.write(f"load average at the end: {environment['load_average']}\n")
    if arguments.json is not None:
        arguments.json.write_text(text, encoding="utf-8")


def _output(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if result.returncode:
        last = result.stderr.strip().splitlines()[-1:]
        raise BatonError(f"the token path failed: {' '.join(last)}")
    return result.stdout
