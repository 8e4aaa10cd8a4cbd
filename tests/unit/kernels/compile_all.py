"""Compile every kernel for every GPU generation we serve on, without a GPU.

    python -m tests.unit.kernels.compile_all [decode prefill ...]

Run by test_compile.py: Triton must be imported without its interpreter. Takes the variants of each
compile_*.py below its folder, or of those named, and prints one JSON line per variant.
"""

import argparse
import importlib
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tests.unit.kernels.variant import Variant

FOLDER = Path(__file__).parent


def all_variants(names: Collection[str]) -> Iterator[tuple[str, Variant]]:
    """(program, variant) of each."""
    for path in sorted(FOLDER.rglob("compile_*.py")):
        if path == Path(__file__) or (names and path.stem.removeprefix("compile_") not in names):
            continue
        room = path.parent.relative_to(FOLDER)
        module = importlib.import_module(f"tests.unit.kernels.{room}.{path.stem}")
        for variant in module.variants():
            yield path.stem, variant


def compile_one(number: int) -> dict[str, Any]:
    began_s = cpu_s()
    program, variant = VARIANTS[number]
    try:
        line = variant.compile()
    except Exception as error:  # of many types, not all of which pass between processes
        raise RuntimeError(f"{variant.name}: {error!r}") from error
    return {"program": program, **line, "cpu_s": round(cpu_s() - began_s, 2)}


def cpu_s() -> float:
    """Of this process and of the assemblers it ran."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


VARIANTS: list[tuple[str, Variant]] = []
"""what the processes, forks of the first, find here"""


def main() -> None:
    parser = argparse.ArgumentParser(description="compile kernels")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    VARIANTS.extend(all_variants(arguments.names))
    with multiprocessing.get_context("fork").Pool(arguments.processes) as pool:
        for line in pool.imap_unordered(compile_one, range(len(VARIANTS))):
            sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
