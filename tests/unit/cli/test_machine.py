"""Counting GPUs without torch."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.launching import driver as cuda
from services.cli.cluster.machine import gpus_reach, num_cores, num_gpus


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "torch_version", "expected"),
    [
        ({}, "2.13.0", 2),
        ({}, "2.13.0+cpu", 0),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "2.13.0+cu126", 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, "2.13.0", 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "2.13.0", 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "2.13.0", 2),
    ],
)
def test_num_gpus(
    devices: Path, environ: dict[str, str], torch_version: str, expected: int
) -> None:
    assert num_gpus(devices, environ, torch_version) == expected


def test_num_cores_is_positive() -> None:
    assert num_cores() >= 1


def driver_of(reached: set[tuple[int, int]], init_status: int = 0) -> SimpleNamespace:
    """A driver whose devices copy from each other as these pairs say."""

    def can_access(can: ctypes.c_int, device: ctypes.c_int, other: ctypes.c_int) -> int:
        ctypes.cast(can, ctypes.POINTER(ctypes.c_int))[0] = (device.value, other.value) in reached
        return 0

    return SimpleNamespace(
        cuInit=lambda flags: init_status,
        cuDeviceCanAccessPeer=can_access,
        cuGetErrorString=lambda status, text: 0,
    )


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (driver_of({(0, 1), (1, 0)}), True),
        (driver_of({(0, 1)}), False),
        (driver_of(set()), False),
        (driver_of({(0, 1), (1, 0)}, init_status=100), False),
    ],
)
def test_gpus_reach(
    driver: SimpleNamespace, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    assert gpus_reach(2) is expected


def test_without_a_driver_gpus_do_not_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> ctypes.CDLL:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda, "driver", none)
    assert not gpus_reach(2)
