"""What launchers would compile, without a device and without compiling it.

Launchers run as they do on a GPU, with tensors of torch's device `meta`, which have a form and no
memory. A kernel that Triton would compile is listed instead, under the key that Triton's cache on
disk knows it by, and is not launched.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton import AsyncCompileMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

WARP_SIZE = 32


@dataclass(frozen=True)
class AbsentDevice:
    """Triton's driver of a GPU of this generation, which need not be there."""

    capability: tuple[int, int]

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        major, minor = self.capability
        return GPUTarget("cuda", 10 * major + minor, WARP_SIZE)


class NotCompiled:
    """What a listed kernel is to Triton and to kernels.launching.repeated_launch."""

    function = packed_metadata = None

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.run

    def launch_metadata(self, *_: object) -> None:
        return None

    def run(self, *_: object) -> None:
        return None


class Listing(AsyncCompileMode):
    """Triton's way to compile later, with no end."""

    def __init__(self) -> None:
        super().__init__(Executor())
        self.kernels: dict[str, Callable[[], Any]] = {}
        """by the key of Triton's cache: what compiles one, or reads it if the cache has it"""

    def submit(self, key: str, compile_fn: Callable[[], Any], *_: object) -> NotCompiled:
        self.kernels.setdefault(key, compile_fn)
        return NotCompiled()


@contextmanager
def listing(capability: tuple[int, int]) -> Iterator[dict[str, Callable[[], Any]]]:
    """Lists what is launched in the block for GPUs of this generation.

    For a process of its own that never launches anything: Triton goes on believing in the device.
    """
    driver.set_active(AbsentDevice(capability))
    with Listing() as mode:
        yield mode.kernels
