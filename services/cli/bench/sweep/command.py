"""`baton bench sweep`: how fast one model decodes with more and more sequences at once, and the
batch beyond which another one brings little.

Needs what `baton bench engine` needs, and measures as its cells tpot-N do.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

from services.cli.bench.engine.model_choice import add_model_flags, choose_model
from services.cli.bench.measure.result_files import check_files
from shared.errors import MissingError

EPILOG = (
    "exit code: 0; 1 a sequence failed, or what was run was not what was asked for; "
    "2 a flag is wrong; 3 no GPU, or no torch"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_model_flags(parser)
    add = parser.add_argument
    add("--batches", metavar="N[,N...]", help="1,2,4 ... 32 on a CPU, 1,2,4 ... 256 on a GPU")
    add("--prompt", type=int, metavar="N", help="tokens of each; 48; 1024 on a GPU")
    add("--steps", type=int, metavar="N", help="decode steps; 16; 128 on a GPU")
    add("--eager", action="store_true", help="decode without CUDA graphs")
    add("--json", type=Path, metavar="FILE", help="JSON lines; - is the output")
    add("--plot", type=Path, metavar="FILE.svg", help="rate, time and share of the roofline")


def run(arguments: argparse.Namespace) -> int:
    check_files(arguments.json, arguments.plot)
    if find_spec("torch") is None:
        raise MissingError("bench sweep needs torch: pip install torch")
    choice = choose_model(arguments.model, random_weights=arguments.random_weights)
    # torch only now: a wrong flag is answered at once.
    from services.cli.bench.sweep.session import run_sweep  # noqa: PLC0415

    run_sweep(arguments, choice)
    return 0
