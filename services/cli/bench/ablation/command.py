"""`baton bench ablation`: what batching, a KV cache, a prefix cache and CUDA graphs each bring, on
one model and one device, with the same tokens from all of them.

    none, batch, KV, both   an engine without prefix cache and graphs, asked in four ways
    + prefix cache          both, with an engine that has one
    + CUDA graphs           the same with graphs, on a GPU

Needs what `baton bench engine` needs.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

from services.cli.amount import above_zero
from services.cli.bench.ablation.load import CPU, GPU
from services.cli.bench.engine.model_choice import add_model_flags, choose_model
from services.cli.bench.measure.result_files import check_file, check_files
from shared.errors import MissingError

EPILOG = (
    "exit code: 0; 1 a sequence failed, ways differ in their greedy tokens (in 16-bit types sums "
    "are rounded by the batch they are in, hence float32), or a file could not be written (the "
    "table is shown all the same); 2 a flag is wrong, or a line of the history; 3 no GPU, or no "
    "torch"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_model_flags(parser, dtype="float32")
    add = parser.add_argument
    add(
        "--requests", type=int, metavar="N", help=f"{CPU.num_requests}; {GPU.num_requests} on a GPU"
    )
    add("--batch", type=int, metavar="N", help=f"sequences at once; {CPU.width}; {GPU.width}")
    add("--shared", type=int, metavar="N", help="tokens that all prompts begin with; 96; 768")
    add("--own", type=int, metavar="N", help="tokens of a prompt that follow; 16; 256")
    add("--output", metavar="A-B", help="tokens of an answer; 16-48; 16-64")
    add("--price", type=above_zero, default=0.0, metavar="USD", help="of one GPU for an hour")
    add("--json", type=Path, metavar="FILE", help="JSON lines; - is the output")
    add("--plot", type=Path, metavar="FILE.svg", help="a bar for each row")
    add(
        "--history",
        type=Path,
        metavar="FILE",
        help="adds the run to this file, and says how it moved against those in it",
    )


def run(arguments: argparse.Namespace) -> int:
    check_files(arguments.json, arguments.plot)
    check_file("--history", arguments.history)
    if find_spec("torch") is None:
        raise MissingError("bench ablation needs torch: pip install torch")
    choice = choose_model(arguments.model, random_weights=arguments.random_weights)
    # torch only now: a wrong flag is answered at once.
    from services.cli.bench.ablation.session import run_ablation  # noqa: PLC0415

    run_ablation(arguments, choice)
    return 0
