"""`baton simulate batching`: batching policies compared on simulated load."""

import argparse
import importlib
from importlib.util import find_spec
from math import isfinite

from services.cli.amount import above_zero
from shared.errors import MissingError
from shared.message_parts.step_costs import StepCosts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "static, dynamic and timed groups next to the engine's scheduler, on one device"
    _add_batching(actions.add_parser("batching", help=text, description=text))


def _add_batching(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("what arrives")
    add = load.add_argument
    add("--requests", type=_count, default=400, metavar="N", help="400")
    add("--rate", type=above_zero, default=40.0, metavar="R", help="requests a second; 40")
    lengths = "tokens of {}, log-uniform; {}"
    add(
        "--prompt",
        type=_lengths,
        default=(32, 1024),
        metavar="A-B",
        help=lengths.format("a prompt", "32-1024"),
    )
    add(
        "--output",
        type=_lengths,
        default=(16, 512),
        metavar="A-B",
        help=lengths.format("an answer", "16-512"),
    )
    add("--seed", type=int, default=1, metavar="N", help="same seed, same requests; 1")
    add = parser.add_argument_group("the device").add_argument
    add("--slots", type=_count, default=32, metavar="N", help="sequences at once; 32")
    add(
        "--wait-ms",
        type=above_zero,
        default=20.0,
        metavar="T",
        help="of dynamic and timed, in milliseconds; 20",
    )
    add("--step-tokens", type=_count, default=2048, metavar="N", help="of a continuous step; 2048")
    add(
        "--step-costs",
        type=_costs,
        metavar="S,S,S,S,S",
        help="step_costs of `baton status --json`, seconds of: a step, a sequence, a position it "
        "attends to, a prompt token, a pair of such a token and a position; "
        "default: Llama 3.1 8B on an H200",
    )
    add = parser.add_argument
    add("--shown", type=_count, default=96, metavar="N", help="requests on the timelines; 96")
    add("--out", default="batching.html", metavar="FILE", help="the report; batching.html")
    add("--json", action="store_true", help="print the outcomes, not a table")


def run(arguments: argparse.Namespace) -> int:
    if find_spec("numpy") is None:  # the scheduler packs its batches with it
        raise MissingError("simulate batching needs numpy: pip install numpy")
    simulator = importlib.import_module("services.simulator.batching.main")
    code: int = simulator.run(vars(arguments))
    return code


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return int(text)


def _lengths(text: str) -> tuple[int, int]:
    """`32-1024`, or `64` for all alike."""
    least, _, most = text.partition("-")
    low, high = _count(least), _count(most or least)
    if low > high:
        raise argparse.ArgumentTypeError(f"{text!r}: the shortest comes first")
    return low, high


def _costs(text: str) -> StepCosts:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != len(StepCosts._fields) or not all(map(isfinite, values)) or min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: {len(StepCosts._fields)} numbers of seconds")
    if not any(values):
        raise argparse.ArgumentTypeError(f"{text!r}: steps would take no time")
    return StepCosts(*values)
