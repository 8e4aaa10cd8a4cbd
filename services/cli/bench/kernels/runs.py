"""Runs a benchmark of kernels/ in a process of its own, so that it has the whole device, and reads
the JSON lines it prints.

Keys of a line: `us` or `ours_us` is the kernel's time (none: it steps aside), or `rested` its
TFLOP/s; `floor_us` is the least time; another key that ends in `_us` is an alternative's time, as
`flash_attention_3_us`, and one that begins with `us_` or `ours_` the kernel's own in another form.
What is left, but for shares and rates, says what was run.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shared.errors import BatonError, MissingError

ROOT = Path(__file__).resolve().parents[4]
BENCHES: Mapping[str, str] = {
    "decode": "kernels.attention.bench_decode",
    "prefill": "kernels.attention.bench_prefill",
    "linear": "kernels.linear.bench",
    "elementwise": "kernels.elementwise.bench",
    "sampling": "kernels.sampling.bench",
}
"""name -> module that prints the lines"""

Line = Mapping[str, Any]


def check_device() -> None:
    """MissingError without a GPU: interpreted kernels have no times worth a word."""
    import torch  # noqa: PLC0415  (`--help` needs none)

    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else "; this torch is a build for CPUs"
        raise MissingError(f"kernels are timed on a GPU, and torch sees none here{build}")


def available() -> list[str]:
    return [name for name, module in BENCHES.items() if find_spec(module) is not None]


def bench_lines(module: str, flags: Sequence[str] = ()) -> Iterator[Line]:
    """One after the other as the process prints them; BatonError if it fails."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module, *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        with process:
            try:
                yield from _lines(process)
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        if process.returncode:
            last = errors.read().strip().splitlines()[-1:] or ["no word of why"]
            raise BatonError(f"{module} failed: {last[0]}")


def _lines(process: subprocess.Popen[str]) -> Iterator[Line]:
    """JSON objects among what it prints."""
    assert process.stdout is not None
    for text in process.stdout:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line
