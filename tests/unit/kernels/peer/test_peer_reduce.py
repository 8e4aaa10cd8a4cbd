"""peer_reduce between real processes that map each other's inboxes; interpreted without a GPU.

On GPUs tests/gpu/test_tensor_parallel_on_gpus.py runs the same between devices.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.peer.inbox import WORDS_QUANTUM, PeerInbox, inbox_bytes
from kernels.peer.reduce import SIZES, PeerTile, peer_reduce, peer_reduce_kernel, peer_tile
from tests.support.pairs.peer_rank import CALLS, MAX_BYTES, NUM_PROGRAMS

INTERPRETED = isinstance(peer_reduce_kernel, InterpretedFunction)
ROOT = Path(__file__).parents[4]
CPU = torch.device("cpu")


def _run(size: int, folder: Path, *arguments: str) -> list[int]:
    """Exit statuses of all ranks."""
    for rank in range(size):
        with (folder / f"inbox{rank}").open("wb") as file:
            file.truncate(inbox_bytes(size, MAX_BYTES, NUM_PROGRAMS))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.support.pairs.peer_rank"]
    running = [
        subprocess.Popen(  # noqa: S603  (our own file)
            [*command, str(rank), str(size), str(folder), *arguments],
            env=environment,
            cwd=ROOT,
        )
        for rank in range(size)
    ]
    try:
        statuses = [process.wait(timeout=100) for process in running]
        # A place that is not emptied lets a later word pass for one that has not come yet.
        inboxes = [(folder / f"inbox{rank}").read_bytes() for rank in range(size)]
        assert not any(inbox.strip(b"\0") for inbox in inboxes)
        return statuses
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_gets_the_sum_in_the_order_of_the_ranks(size: int, tmp_path: Path) -> None:
    assert _run(size, tmp_path) == [0] * size


@pytest.mark.timeout(120)
def test_one_wrong_number_is_found(tmp_path: Path) -> None:
    assert _run(2, tmp_path, "--wrong") == [len(CALLS)] * 2


@pytest.mark.parametrize("size", SIZES)
def test_tiles_fit_a_programs_places(size: int) -> None:
    for num_words in (1, 96, 4096, 4097, 32768, 65536, 10**6):
        tile = peer_tile(num_words, size)
        assert tile.num_words <= WORDS_QUANTUM
        inbox = PeerInbox.over(0, [0] * size, 4 * num_words, CPU)
        assert inbox.max_bytes >= 4 * num_words
        tiles_per_program = -(-num_words // (tile.num_words * inbox.num_programs))
        assert tiles_per_program * tile.num_words <= inbox.words_per_program
        tile.check(size)


def test_two_ranks_never_make_two_trips() -> None:
    assert not peer_tile(2**18, 2).sliced
    assert peer_tile(2**17, 4).sliced


@pytest.mark.parametrize(
    ("message", "output", "residual", "error"),
    [
        (torch.zeros(3, dtype=torch.float16), torch.zeros(3, dtype=torch.float16), None, "words"),
        (torch.zeros(2**18), torch.zeros(2**18), None, "at most"),
        (torch.zeros(4), torch.zeros(2, 2), None, "equal and contiguous"),
        (torch.zeros(4), torch.zeros(4), torch.zeros(8)[::2], "equal and contiguous"),
        (torch.zeros(4), torch.zeros(4), torch.zeros(4, device="meta"), "device"),
    ],
)
def test_what_does_not_fit_is_refused(
    message: torch.Tensor, output: torch.Tensor, residual: torch.Tensor | None, error: str
) -> None:
    inbox = PeerInbox.over(0, [0, 0], MAX_BYTES, CPU)
    with pytest.raises(ValueError, match=error):
        peer_reduce(message, inbox, output, residual)


@pytest.mark.parametrize(
    ("tile", "size"),
    [
        (PeerTile(2048, 4), 2),
        (PeerTile(96, 1), 2),
        (PeerTile(128, 8), 2),
        (PeerTile(256, 2, sliced=True), 8),
    ],
    ids=["past its places", "no power of two", "idle threads", "slices with idle threads"],
)
def test_a_tile_that_could_hang_is_refused(tile: PeerTile, size: int) -> None:
    inbox = PeerInbox.over(0, [0] * size, MAX_BYTES, CPU)
    with pytest.raises(ValueError, match="tile"):
        peer_reduce(torch.zeros(4), inbox, torch.zeros(4), tile=tile)


def test_another_type_or_number_of_ranks_is_refused() -> None:
    inbox = PeerInbox.over(0, [0, 0], MAX_BYTES, CPU)
    with pytest.raises(TypeError):
        peer_reduce(torch.zeros(4, dtype=torch.float64), inbox, torch.zeros(4))
    with pytest.raises(TypeError):
        peer_reduce(torch.zeros(4), inbox, torch.zeros(4, dtype=torch.float16))
    with pytest.raises(ValueError, match="of 3"):
        peer_reduce(torch.zeros(4), PeerInbox.over(0, [0, 0, 0], 64, CPU), torch.zeros(4))
    if INTERPRETED:
        row = torch.zeros(4, dtype=torch.bfloat16)
        with pytest.raises(TypeError, match="bfloat16"):
            peer_reduce(row, inbox, row)
