"""Fills Triton's cache ahead of a launch: what has to be compiled of a kernel, and of the host."""

from collections.abc import Callable
from typing import Any

from triton.backends.nvidia import driver as triton_driver

from kernels.launching.driver import driver

COMPILES_LAUNCHERS = hasattr(triton_driver, "make_launcher")
"""Triton 3.6 has the host's compiler make a launcher for every signature, later ones have one"""


def compile_kernel(listed: Callable[[], Any]) -> None:
    """One of kernels.launching.listing, and the host's code that launches it if it needs any and
    this machine has the driver to link that with."""
    kernel = listed()
    if COMPILES_LAUNCHERS and _has_driver():
        triton_driver.CudaLauncher(kernel.src, kernel.metadata)


def compile_loader() -> None:
    """The host's code that loads kernels, under the same condition."""
    if _has_driver():
        triton_driver.CudaUtils()


def _has_driver() -> bool:
    try:
        driver()
    except OSError:
        return False
    return True
