"""How many KV blocks: the setting, else what fits, and the least over the ranks."""

import subprocess
import sys

import pytest

from shared.engine.loading.pool_size import (
    GIB,
    MemoryProfile,
    blocks_on_gpu,
    check_gpus_suffice,
    count_blocks,
)
from shared.engine.scheduling.block_pool import MIN_BLOCKS
from shared.errors import SettingsError
from shared.kv.layout import KVLayout
from shared.settings.groups import KVSettings

LAYOUT = KVLayout("m", "float32", 2, 2, 16, 2, 16)
BLOCK_BYTES = LAYOUT.block_bytes


def profile(weights_gib: float) -> MemoryProfile:
    return MemoryProfile(
        total_bytes=80 * GIB,
        utilization=0.9,
        others_bytes=GIB,
        weights_bytes=int(weights_gib * GIB),
        activations_bytes=2 * GIB,
    )


def unmeasured() -> MemoryProfile:
    raise AssertionError("nothing is measured where --kv-blocks says how many")


def test_the_setting_goes_before_what_fits() -> None:
    assert count_blocks(KVSettings(blocks=7), LAYOUT, int) == 7
    assert count_blocks(KVSettings(blocks=7), LAYOUT, int, unmeasured) == 7


@pytest.mark.parametrize("measured", [None, unmeasured])
def test_the_setting_names_no_pool_that_is_too_small(measured: object) -> None:
    assert count_blocks(KVSettings(blocks=MIN_BLOCKS), LAYOUT, int, measured) == MIN_BLOCKS  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=f"--kv-blocks {MIN_BLOCKS}, or without it"):
        count_blocks(KVSettings(blocks=MIN_BLOCKS - 1), LAYOUT, int, measured)  # type: ignore[arg-type]


def test_a_cpu_holds_what_its_memory_setting_says() -> None:
    assert count_blocks(KVSettings(memory_mib=3), LAYOUT, int) == 3 * 2**20 // BLOCK_BYTES
    huge = KVLayout("m", "float32", 2, 2, 4096, 2, 256)
    with pytest.raises(SettingsError, match="--kv-memory-mib leaves room for 0"):
        count_blocks(KVSettings(memory_mib=1), huge, int)


def test_a_gpu_holds_what_the_rest_leaves() -> None:
    measured = profile(15.0)
    used = sum(
        (
            measured.others_bytes,
            measured.weights_bytes,
            measured.activations_bytes,
            measured.graphs_bytes,
            measured.kv_bytes,
        )
    )
    assert used == int(0.9 * 80 * GIB)
    assert count_blocks(KVSettings(), LAYOUT, int, lambda: measured) == (
        measured.kv_bytes // BLOCK_BYTES
    )
    assert str(measured).startswith("72.0 of 80.0 GiB may be used: weights 15.00, activations 2.00")


def test_a_model_that_does_not_fit_says_what_takes_the_room_and_what_helps() -> None:
    with pytest.raises(SettingsError) as told:
        blocks_on_gpu(profile(69.0), 2**21)
    for part in ("weights 69.00", "KV -0.40", "--gpu-memory-utilization", "--tp", str(MIN_BLOCKS)):
        assert part in str(told.value)


@pytest.mark.parametrize("kv", [KVSettings(blocks=9), KVSettings()])
@pytest.mark.parametrize("measured", [None, lambda: profile(15.0)])
def test_ranks_take_the_least_of_theirs(kv: KVSettings, measured: object) -> None:
    """However a rank comes by its number: block ids mean the same on all."""
    told: list[int] = []

    def least(number: int) -> int:
        told.append(number)
        return 5

    assert count_blocks(kv, LAYOUT, least, measured) == 5  # type: ignore[arg-type]
    assert len(told) == 1 and told[0] > 5


def test_workers_do_not_share_a_gpu_that_each_would_fill() -> None:
    check_gpus_suffice((1, 1), kv_blocks=0, num_gpus=2)
    check_gpus_suffice((1, 1), kv_blocks=0, num_gpus=0)
    check_gpus_suffice((1, 1), kv_blocks=64, num_gpus=1)
    check_gpus_suffice((2, 1), kv_blocks=0, num_gpus=3)
    check_gpus_suffice((2, 1), kv_blocks=64, num_gpus=2)
    for tps, num_gpus in (((1, 1), 1), ((2, 1), 2), ((4, 2, 2), 7)):
        with pytest.raises(SettingsError, match="--kv-blocks"):
            check_gpus_suffice(tps, kv_blocks=0, num_gpus=num_gpus)


def test_a_worker_s_ranks_share_no_gpu() -> None:
    with pytest.raises(SettingsError, match="tp 4 takes 4 GPUs, and there are 3: a smaller --tp"):
        check_gpus_suffice((1, 4), kv_blocks=64, num_gpus=3)


def test_asking_imports_no_torch() -> None:
    program = "import sys, shared.engine.loading.pool_size; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603
