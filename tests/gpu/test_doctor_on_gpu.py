"""`baton doctor` finds nothing wrong with a GPU that tests run on."""

import os

import pytest

from services.cli.doctor.gpu import gather_gpu, judge_gpu
from services.cli.doctor.kernel_cache import gather_kernel_cache, judge_kernel_cache

pytestmark = pytest.mark.gpu


def test_a_healthy_gpu_has_no_fault() -> None:
    found = judge_gpu(gather_gpu(wanted=True), wanted=True, present=True, first=0, tp=1)
    found += judge_kernel_cache(gather_kernel_cache(os.environ))
    assert not [str(each) for each in found if each.level != "ok"]
    assert {"torch", "driver", "cuda:0", "kernel"} <= {each.check for each in found}
