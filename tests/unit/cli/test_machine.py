"""Counting GPUs without torch."""

from pathlib import Path

import pytest

from services.cli.cluster.machine import num_cores, num_gpus


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
