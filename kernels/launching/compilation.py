"""Fills Triton's cache ahead of a launch: what has to be compiled of a kernel, and of the host."""

from collections.abc import Callable
from typing import Any

from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

from kernels.launching.driver import driver


def compile_kernel(listed: Callable[[], Any]) -> None:
    """One of kernels.launching.listing, and the host's code that launches it where this machine has
    the driver to link that with."""
    kernel = listed()
    if _has_driver():
        CudaLauncher(kernel.src, kernel.metadata)


def compile_loader() -> None:
    """The host's code that loads kernels, under the same condition."""
    if _has_driver():
        CudaUtils()


def _has_driver() -> bool:
    try:
        driver()
    except OSError:
        return False
    return True
