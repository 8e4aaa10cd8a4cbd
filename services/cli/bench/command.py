"""`baton bench NAME`: measurements with one command each. Loads only the one that was named.

A benchmark is a module `services.cli.bench.NAME.command` with `add_arguments(parser)` and
`run(arguments) -> int`, and a line in BENCHMARKS.
"""

import argparse
import importlib
import sys

from shared.errors import SettingsError

BENCHMARKS = {
    "serve": "load any OpenAI endpoint; time to first token, token gaps, goodput, ideal replay",
    "verdict": "say whether prefill and decode apart serve a load better than together",
    "gateway": "measure Baton's gateway over mock workers against its goals",
    "handover": "measure what a hand-over adds, next to the same engine without one",
    "engine": "measure one model on this device against its floors and against others",
    "sweep": "decode with more and more sequences at once, and find the knee",
    "ablation": "measure what batching, KV, a prefix cache and CUDA graphs each bring",
    "kernels": "time each kernel on this GPU and its alternatives",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = "; ".join(f"{name}: {text}" for name, text in BENCHMARKS.items())
    parser.add_argument("benchmark", nargs="?", choices=BENCHMARKS, help=names)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="`baton bench NAME --help`")
    parser.set_defaults(parser_kind=type(parser))


def run(arguments: argparse.Namespace) -> int:
    name = arguments.benchmark
    if name is None:
        if arguments.flags:
            raise SettingsError(f"name a benchmark before its flags: {', '.join(BENCHMARKS)}")
        sys.stdout.write(_overview())
        return 0
    benchmark = importlib.import_module(f"services.cli.bench.{name}.command")
    parser = arguments.parser_kind(prog=f"baton bench {name}", description=BENCHMARKS[name])
    benchmark.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show a traceback on failure")
    own = parser.parse_args(arguments.flags)
    own.command_line = sys.argv[1:]
    code: int = benchmark.run(own)
    return code


def _overview() -> str:
    lines = [f"  {name:9}{text}" for name, text in BENCHMARKS.items()]
    return "usage: baton bench NAME [flags]\n\n" + "\n".join(lines) + "\n"
