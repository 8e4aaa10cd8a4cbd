"""`baton bench engine`: how fast one model decodes and computes prompts here, compared with the
least time the device could take and with what others were measured to take.

Needs torch, numpy, safetensors, msgpack and, on a GPU, triton; no gateway, no Redis, no installed
package of ours: `python3 -m services.cli bench engine ...` from a checkout does the same.
"""

import argparse
import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from services.cli.bench.engine.figures.figure import Check, Figure, render
from services.cli.bench.engine.model_choice import add_model_flags, choose_model
from services.cli.bench.measure import progress_line
from shared.errors import BatonError, MissingError, SettingsError

EPILOG = (
    "cells: tpot-N, time per output token of N sequences that start together; prefill-N, one "
    "prompt to its first token; offline, all requests at once; attention-decode and "
    "attention-prefill, kernels by themselves; worker-step-256, the host's part of a worker's "
    "step; step-time, if named, how well an engine predicts its own steps. "
    "JSON lines go to the output; progress, and a table at the end, to the error output. "
    "Exit code: 0; 1 a check did not hold or a sequence failed, with --strict also a figure behind "
    "its goal (everything is shown all the same); 2 a flag is wrong; 3 no GPU, or no vLLM"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add_model_flags(parser)
    add("--engine", choices=("baton", "vllm"), default="baton", help="vllm: an installed one")
    add("--tp", type=int, default=1, metavar="N", help="GPUs that share the model; 1")
    add("--cells", metavar="NAME[,NAME]", help="only these; * stands for anything: tpot-*")
    add("--quick", action="store_true", help="fewer tokens, rounds and requests")
    add(
        "--max-num-batched-tokens",
        type=int,
        default=None,
        metavar="N",
        help="tokens one step of Baton's engine may compute; 8192 on a GPU",
    )
    add("--prefix-cache", action="store_true", help="with the prefix cache, which is off else")
    add("--eager", action="store_true", help="decode without CUDA graphs")
    add(
        "--profile",
        type=Path,
        metavar="DIR",
        help="write torch traces of decode steps there, and say what each kernel adds to a step",
    )
    add(
        "--scrape-hz",
        type=float,
        default=0.0,
        metavar="HZ",
        help="with --profile: also trace a decode while a process renders metrics",
    )
    add("--strict", action="store_true", help="exit with 1 when a figure misses its goal")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    choice = choose_model(arguments.model, random_weights=arguments.random_weights)
    # torch only now: a wrong flag is answered at once.
    from services.cli.bench.engine.plan import BenchPlan  # noqa: PLC0415
    from services.cli.bench.engine.session import Session  # noqa: PLC0415

    session = Session(BenchPlan.of(arguments, choice))
    try:
        session.run()
    finally:  # what was measured is shown, also when a later cell fails
        progress_line.clear()
        if session.figures:
            sys.stderr.write("\n" + render(session.figures, "others"))
    _judge(session.figures, session.checks, strict=arguments.strict)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if min(arguments.tp, arguments.block_size) < 1:
        raise SettingsError("--tp and --block-size: at least 1")
    if not 0 <= arguments.scrape_hz < math.inf:
        raise SettingsError("--scrape-hz: a number of at least 0")
    if arguments.scrape_hz and arguments.profile is None:
        raise SettingsError("--scrape-hz belongs to --profile")
    if arguments.profile is not None:
        if arguments.engine != "baton":
            raise SettingsError("--profile traces Baton's engine only")
        try:
            arguments.profile.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"--profile {arguments.profile}: {error.strerror}") from error
        if not os.access(arguments.profile, os.W_OK | os.X_OK):
            raise SettingsError(f"--profile {arguments.profile}: cannot be written to")
    if find_spec("torch") is None:
        raise MissingError("bench engine needs torch: pip install torch")
    if arguments.engine == "vllm" and find_spec("vllm") is None:
        raise MissingError(
            "--engine vllm needs an installed vLLM. It brings its own torch: in another venv, "
            "`pip install vllm`, then `python -m services.cli bench engine ...` from a checkout"
        )


def _judge(figures: list[Figure], checks: list[Check], *, strict: bool) -> None:
    """Everything was shown: now whether it may be relied on."""
    faults = [f"{one.cell}: {check.name}: {check.text}" for one in figures for check in one.failed]
    faults += [f"{check.name}: {check.text}" for check in checks if check.ok is False]
    if strict:
        faults += [f"{one.cell} misses its goal" for one in figures if one.verdict == "missed"]
    if faults:
        raise BatonError("; ".join(faults))
