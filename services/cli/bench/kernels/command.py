"""`baton bench kernels`: the times of each kernel and its alternatives on this GPU.

The benchmarks are those of kernels/; each compares its outputs with the reference before it times
anything. Lines go to the output as they come, the table to the error output at the end.
"""

import argparse
import json
import sys

from services.cli.bench.kernels.runs import BENCHES, available, bench_lines, check_device
from services.cli.bench.kernels.table import Comparison, comparisons, render
from services.cli.bench.measure.progress_line import announce, clear
from shared.errors import SettingsError

EPILOG = (
    "decode: paged decode attention; prefill: paged prefill attention; linear: products of up to "
    "256 rows; elementwise: norms, rotary positions, activations, block copies; sampling. Exit "
    "code: 0; 1 a benchmark failed, for example because an output was wrong; 3 no GPU"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--only", metavar="NAME[,NAME]", help=f"of {', '.join(BENCHES)}; all unless given"
    )


def run(arguments: argparse.Namespace) -> int:
    names = _names(arguments.only)
    check_device()
    rows: list[Comparison] = []
    try:
        for number, name in enumerate(names, start=1):
            announce(f"[{number}/{len(names)}] {BENCHES[name]}")
            lines = []
            for line in bench_lines(BENCHES[name]):
                lines.append(line)
                sys.stdout.write(json.dumps({"bench": name, **line}) + "\n")
                sys.stdout.flush()
            rows += comparisons(name, lines)
    finally:  # what was measured is shown, also when a later benchmark fails
        clear()
        if rows:
            sys.stderr.write(render(rows))
    return 0


def _names(only: str | None) -> list[str]:
    there = available()
    if only is None:
        return there
    for name in only.split(","):
        if name not in there:
            raise SettingsError(f"--only {name}: no such benchmark; there are {', '.join(there)}")
    return [name for name in there if name in only.split(",")]
