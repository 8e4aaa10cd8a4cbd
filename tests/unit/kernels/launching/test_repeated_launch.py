"""Of repeated launches only the first asks Triton, and no launch gets another's kernel."""

from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.compiler import BaseBackend
from triton.runtime import jit

from kernels.launching import repeated_launch
from kernels.launching.known_launches import MAX_KNOWN, KnownLaunches
from kernels.launching.repeated_launch import Launch

NUMBERS = (0, 1, 2, 7, 16, 48, 2**31 - 16, 2**31 - 1, 2**31, 2**31 + 1, 2**40, 2**40 + 3)
MEMORY = torch.zeros(64)
ALIGNED, UNALIGNED = MEMORY[:8], MEMORY[1:9]


class Kernel:
    """What Triton makes of a function of two tensors, an offset, a number and a constant."""

    def __init__(self, *, compiles: bool = True) -> None:
        self.arg_names = ["x_ptr", "y_ptr", "offset", "stride", "WIDTH"]
        self._compiles = compiles
        self.asked: list[tuple[Any, ...]] = []
        self.repeated: list[tuple[Any, ...]] = []
        """launches of compiled kernels: which one it is, and its arguments"""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def ask(*arguments: Any, **constants: Any) -> Any:
            self.asked.append((grid, arguments, constants))
            return Compiled(len(self.asked), self.repeated) if self._compiles else None

        return ask


class Compiled:
    def __init__(self, number: int, repeated: list[tuple[Any, ...]]) -> None:
        self._number = number
        self._repeated = repeated

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: self._repeated.append((self._number, grid, arguments))


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Triton's current one, by its `number`."""
    device = SimpleNamespace(number=0)
    active = SimpleNamespace(get_current_device=lambda: device.number)
    monkeypatch.setattr(repeated_launch, "driver", SimpleNamespace(active=active))
    return device


def launch_of(kernel: Any, grid: tuple[int, ...] = (5, 2)) -> Launch:
    return Launch(kernel, grid, numbers=(9,), constants={"WIDTH": 64}, options={"num_warps": 4})


def test_the_second_launch_goes_to_what_the_first_compiled() -> None:
    kernel = Kernel()
    launch = launch_of(kernel)
    launch(ALIGNED, ALIGNED, offset=32)
    launch(ALIGNED, MEMORY[4:12], offset=48)
    ((grid, arguments, constants),) = kernel.asked
    assert grid == (5, 2, 1) and arguments[2:] == (32, 9)
    assert constants == {"WIDTH": 64, "num_warps": 4}
    ((number, grid, arguments),) = kernel.repeated
    assert (number, grid) == (1, (5, 2, 1))
    assert arguments[0] is ALIGNED and arguments[2:] == (48, 9, 64)


def test_what_triton_compiles_for_is_never_mixed_up(device: SimpleNamespace) -> None:
    kernel = Kernel()
    launch = launch_of(kernel)
    calls = [
        (number, (first, second), offset)
        for number in (0, 1)
        for first in (ALIGNED, UNALIGNED)
        for second in (ALIGNED, UNALIGNED)
        for offset in (1, 16, 17, 2**31, 2**31 + 1)
    ]
    for _ in range(2):
        for device.number, tensors, offset in calls:
            launch(*tensors, offset=offset)
    assert len(kernel.asked) == len(calls)
    assert [number for number, *_ in kernel.repeated] == [*range(1, len(calls) + 1)]


def test_numbers_of_one_kind_are_one_to_triton() -> None:
    seen = {
        number: jit.native_specialize_impl(BaseBackend, number, False, True, True)
        for number in NUMBERS
    }
    for one, other in combinations(NUMBERS, 2):
        if repeated_launch._kind(one) == repeated_launch._kind(other):
            assert seen[one] == seen[other], (one, other)


def test_what_is_not_compiled_is_asked_for_again() -> None:
    kernel = Kernel(compiles=False)
    launch = launch_of(kernel)
    for _ in range(2):
        launch(ALIGNED, ALIGNED, offset=0)
    assert len(kernel.asked) == 2


def test_a_grid_without_programs_launches_nothing() -> None:
    kernel = Kernel()
    launch_of(kernel, (0, 2))(ALIGNED, ALIGNED, offset=0)
    assert not kernel.asked


def test_constants_come_as_the_kernel_names_them() -> None:
    kernel = Kernel()
    kernel.arg_names = [*kernel.arg_names, "HEIGHT"]
    with pytest.raises(KeyError):
        launch_of(kernel)


def test_a_launch_is_prepared_once_for_tensors_of_one_form() -> None:
    known, prepared = KnownLaunches(), []

    def prepare(tensor: torch.Tensor, overlap: bool) -> Launch:
        prepared.append((tensor, overlap))
        return launch_of(Kernel())

    rows = torch.zeros(4, 6)
    first = known.find(prepare, (rows,), False)
    assert known.find(prepare, (torch.ones(4, 6),), False) is first
    others = (rows[:3], torch.zeros(6, 4).t(), rows.half(), rows.to("meta"), rows.double())
    launches = [known.find(prepare, (other,), False) for other in others]
    launches.append(known.find(prepare, (rows,), True))
    assert len({id(launch) for launch in (first, *launches)}) == len(prepared) == 7


def test_what_does_not_fit_raises_every_time() -> None:
    def prepare(tensor: torch.Tensor) -> Launch:
        raise ValueError("too wide")

    known = KnownLaunches()
    for _ in range(2):
        with pytest.raises(ValueError, match="too wide"):
            known.find(prepare, (ALIGNED,))


def test_only_so_many_launches_are_kept() -> None:
    known, prepared = KnownLaunches(), []

    def prepare(tensor: torch.Tensor, number: int) -> Launch:
        prepared.append(number)
        return launch_of(Kernel())

    for number in (*range(MAX_KNOWN + 1), MAX_KNOWN, 0):
        known.find(prepare, (ALIGNED,), number)
    assert prepared == [*range(MAX_KNOWN + 1), 0]
