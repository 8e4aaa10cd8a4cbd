"""`baton capacity`: what of a model fits on a device, before anybody buys or starts it."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from services.cli.amount import above_zero
from services.cli.bench.measure.result_files import check_files
from services.cli.byte_size import GIB, parse, shown
from services.cli.capacity.advice import advise
from services.cli.capacity.devices import GPUS_MIB, Device, named_gpu, this_machine
from services.cli.capacity.estimate import Question, estimate
from services.cli.capacity.report import as_json, render
from services.cli.capacity.split import split_of
from services.cli.flags import add_settings, given_settings
from services.cli.terminal import terminal_width
from shared.errors import ModelError, SettingsError
from shared.model.checkpoint import (
    Checkpoint,
    config_checkpoint,
    random_checkpoint,
    resolve_model,
)
from shared.model.shapes import SHAPES
from shared.settings.groups import ComputeSettings
from shared.settings.load import load_settings

SETTINGS = (
    "model",
    "dtype",
    "device",
    "tp",
    "kv_blocks",
    "block_size",
    "gpu_memory_utilization",
    "kv_memory_mib",
    "max_num_batched_tokens",
    "max_num_seqs",
    "profile",
)
EPILOG = (
    "--model may also be a shape (" + ", ".join(SHAPES) + "); of a hub id only config and text "
    "files are fetched. USD per million tokens = price x GPUs / (tokens per second x 3600) x "
    "1,000,000. Exit code 1: it does not fit"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_settings(parser, SETTINGS)
    device = parser.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu", metavar="NAME", help=f"{', '.join(GPUS_MIB)}; default: what this machine has"
    )
    device.add_argument(
        "--gpu-memory", type=_num_bytes, metavar="SIZE", help="of another GPU, as 80GiB"
    )
    parser.add_argument(
        "--context",
        type=_positive,
        metavar="N",
        help="tokens of a sequence that must fit; default: any will do",
    )
    parser.add_argument(
        "--prompt", type=_positive, default=0, metavar="N", help="also show prompts of N tokens"
    )
    parser.add_argument(
        "--answer",
        type=_positive,
        default=0,
        metavar="N",
        help="of a prompt's answer, with --prompt: how many workers for each role",
    )
    parser.add_argument(
        "--price", type=above_zero, default=0.0, metavar="USD", help="of one GPU for an hour"
    )
    parser.add_argument(
        "--tokens-per-s",
        type=above_zero,
        default=0.0,
        metavar="R",
        help="of the worker, as `baton bench serve` or `bench engine` measures it; for --price",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="a JSON object; - is the output")


def run(arguments: argparse.Namespace) -> int:
    check_files(arguments.json, None)
    question = _question(arguments)
    capacity = estimate(question)
    ways = () if capacity.fits else advise(question)
    split = split_of(question, capacity) if capacity.fits else None
    if arguments.json != Path("-"):
        sys.stdout.write(render(question, capacity, ways, split, terminal_width()))
    if arguments.json is not None:
        text = as_json(question, capacity, ways, split)
        if arguments.json == Path("-"):
            sys.stdout.write(text)
        else:
            arguments.json.write_text(text, encoding="utf-8")
    return 0 if capacity.fits else 1


def _question(arguments: argparse.Namespace) -> Question:
    settings = load_settings(given_settings(arguments), os.environ)
    if bool(arguments.price) != bool(arguments.tokens_per_s):
        raise SettingsError(
            "--price and --tokens-per-s belong together; `baton bench serve` measures the latter"
        )
    if arguments.answer and not arguments.prompt:
        raise SettingsError("--answer N belongs to --prompt N: together they are a request")
    checkpoint = _checkpoint(settings.model.name)
    longest = checkpoint.config.longest_len
    for flag in ("context", "prompt"):
        if (getattr(arguments, flag) or 0) > longest:
            number = getattr(arguments, flag)
            raise SettingsError(f"--{flag} {number} is above the model's {longest} tokens")
    if arguments.prompt + arguments.answer > longest:
        raise SettingsError(f"--prompt and --answer are above the model's {longest} tokens")
    context = arguments.context or settings.compute.max_model_len
    return Question(
        checkpoint=checkpoint,
        device=_device(arguments, settings.compute),
        compute=replace(settings.compute, max_model_len=context),
        kv=settings.kv,
        engine=settings.engine,
        prompt=arguments.prompt,
        answer=arguments.answer,
        usd_per_gpu_hour=arguments.price,
        tokens_per_s=arguments.tokens_per_s,
    )


def _checkpoint(model: str) -> Checkpoint:
    """By its config alone."""
    if model in SHAPES and not Path(model).is_dir():
        return random_checkpoint(Path(model), model, SHAPES[model])
    try:
        path = resolve_model(model, texts_only=True)
    except ModelError as error:
        raise ModelError(f"{error}; shapes are {', '.join(SHAPES)}") from None
    return config_checkpoint(path, model)


def _device(arguments: argparse.Namespace, compute: ComputeSettings) -> Device:
    if arguments.gpu:
        return named_gpu(arguments.gpu)
    if arguments.gpu_memory:
        return Device(f"a GPU of {shown(arguments.gpu_memory)}", arguments.gpu_memory)
    return this_machine(compute)


def _num_bytes(text: str) -> int:
    try:
        num_bytes = parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if num_bytes < GIB:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1GiB, and no GPU has that little")
    return num_bytes


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens")
    return int(text)
