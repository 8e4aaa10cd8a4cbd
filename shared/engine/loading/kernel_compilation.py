"""Compiles the kernels of a GPU worker's start in processes of their own while weights are loaded.

Triton compiles a kernel when it is first launched, one after the other, and keeps it in its cache
on disk. What is missing there is compiled before. Nothing depends on it: a kernel that is missing
all the same is compiled at its launch.
"""

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch
import triton

import kernels
import shared.engine
from shared.engine.loading.device_form import FORMS, DeviceForm

logger = logging.getLogger(__name__)

COMPILER = "shared.engine.loading.kernel_compiler"


class KernelCompilation:
    """The compiler's process, none where the cache has all kernels of this form. A context: at its
    end the process ends."""

    def __init__(self, form: DeviceForm) -> None:
        stamp = stamp_of(form)
        compiled = stamp.is_file() and stamp.stat().st_size
        self._process = None if compiled else _start(form, stamp)

    def wait(self) -> None:
        """Until all kernels are compiled; logs how that goes."""
        if self._process is None:
            return
        assert self._process.stdout is not None
        for line in self._process.stdout:
            logger.info("%s", line.decode().rstrip())
        status = self._process.wait()
        if status:
            logger.warning(
                "kernels could not all be compiled ahead (status %d): "
                "the others are compiled when they are first launched",
                status,
            )

    def __enter__(self) -> "KernelCompilation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


def stamp_of(form: DeviceForm) -> Path:
    """The file in Triton's cache that says, by not being empty, that all kernels of this form are
    in there. Another name for whatever may change what is launched or what is compiled of it."""
    digest = hashlib.sha256()
    nameless = replace(form.share.whole, model="")
    form = replace(form, share=replace(form.share, whole=nameless, rank=0))
    digest.update(FORMS.encode(form))
    digest.update(f"{triton.__version__} {torch.__version__} {sys.version}".encode())
    for name in sorted(os.environ):
        if name.startswith("TRITON_"):
            digest.update(f"{name}={os.environ[name]}".encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return Path(triton.knobs.cache.dir) / f"baton-{digest.hexdigest()}"


def _sources() -> Iterator[Path]:
    for package in (kernels, shared.engine):
        (folder,) = package.__path__
        yield from sorted(Path(folder).rglob("*.py"))


def _start(form: DeviceForm, stamp: Path) -> "subprocess.Popen[bytes] | None":
    """None, and a line in the log, if no process can be made."""
    # No GPU is to be seen there, and a process that forks is to have no threads.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    try:
        process = subprocess.Popen(  # noqa: S603  (our own program)
            [sys.executable, "-m", COMPILER, str(os.getpid()), str(stamp)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
    except OSError as error:
        logger.warning("kernels are compiled when they are first launched: %s", error)
        return None
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(FORMS.encode(form))
    return process
