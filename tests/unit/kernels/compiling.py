"""Runs the programs that compile kernels ahead of time, as a machine without an interpreter."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def compiled(program: str, cache: Path, parts: Sequence[Sequence[str]] = ((),)) -> list[Any]:
    """What a program of this folder says of each variant it compiled; the parts, the arguments
    of a run each, run side by side."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(  # noqa: S603  (our own file)
            [sys.executable, str(Path(__file__).with_name(program)), *arguments],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in parts
    ]
    done = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * len(running), done
    variants = [json.loads(line) for output, _ in done for line in output.splitlines()]
    assert all(variant["cubin_bytes"] > 0 for variant in variants)
    sys.stdout.write(f"{len(variants)} kernel variants compiled\n")
    return variants
