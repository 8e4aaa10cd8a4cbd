"""One rank of a peer_reduce: `peer_rank RANK SIZE FOLDER [--device cuda] [--wrong]`.

On a CPU the kernel is interpreted and the inboxes are files that all ranks map, so their addresses
differ from process to process as those of GPUs do. On GPUs, rank r on device r modulo their number,
everything runs once more in a replayed graph. Every rank computes the messages of all and compares
its result with the reference; with `--wrong` the last rank sends one number that is not the
expected one. The exit status is the number of results that differ.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from kernels.peer import reference as reference_peer_reduce
from kernels.peer.inbox import WORD_BYTES, PeerInbox, inbox_bytes
from kernels.peer.memory import PeerMemory
from kernels.peer.reduce import PeerTile, peer_reduce

MAX_BYTES = 2**15
NUM_PROGRAMS = 4
SLICED = PeerTile(256, 2, sliced=True)
CALLS: tuple[tuple[tuple[int, int], torch.dtype, bool, PeerTile | None], ...] = (
    ((1, 96), torch.float32, False, None),
    ((3, 130), torch.float16, True, None),
    ((2, 33), torch.float32, True, SLICED),
    ((1, 96), torch.float32, False, None),
    ((7, 1030), torch.float16, False, None),
    ((7, 1030), torch.float16, True, SLICED),
    ((1, 8191), torch.float32, True, None),
    ((1, 8191), torch.float32, False, SLICED),
    ((2, 2), torch.float16, True, None),
)
"""(shape, type, with a residual, tile if not the table's): fewer words than a tile, several tiles,
several per program"""
SHARE_OF_ZEROS = 0.1
NUM_REPLAYS = 5


class Call:
    """One reduction, of other messages in every round."""

    def __init__(
        self, number: int, dtype: torch.dtype, inbox: PeerInbox, *, wrong: bool, overlap: bool
    ) -> None:
        self._shape, _, self._added, self._tile = CALLS[number]
        self._number, self._dtype, self._inbox = number, dtype, inbox
        self._wrong = wrong and inbox.rank == inbox.size - 1
        self._overlap = overlap
        empty = torch.zeros(self._shape, dtype=dtype, device=inbox.counters.device)
        self._message, self._residual = empty, empty.clone()
        self._output = empty if number % 2 else empty.clone()
        self._expected = empty.clone()

    def fill(self, round_number: int) -> None:
        generator = torch.Generator().manual_seed(round_number * len(CALLS) + self._number)
        shape = (self._inbox.size + 1, *self._shape)
        drawn = torch.randn(shape, generator=generator).to(self._dtype)
        # An empty place is a word of zeros: some of the words are.
        words = drawn.view(-1).view(torch.int32)
        words[torch.rand(words.shape, generator=generator) < SHARE_OF_ZEROS] = 0
        residual = drawn[-1] if self._added else None
        expected = torch.empty_like(drawn[0])
        reference_peer_reduce.peer_reduce(list(drawn[:-1]), expected, residual)
        self._expected.copy_(expected)
        self._message.copy_(drawn[self._inbox.rank])
        self._residual.copy_(drawn[-1])
        if self._wrong:
            self._message.view(-1)[-1] += 1

    def run(self) -> None:
        residual = self._residual if self._added else None
        place = (self._message, self._inbox, self._output, residual)
        peer_reduce(*place, overlap=self._overlap, tile=self._tile)

    def differs(self) -> bool:
        """Also a 0.0 that is -0.0 on another rank is another number."""
        bits = (tensor.view(-1).view(torch.int32) for tensor in (self._output, self._expected))
        return not torch.equal(*bits)


def mapped_inbox(rank: int, size: int, folder: Path) -> tuple[PeerInbox, list[torch.Tensor]]:
    """Over files, and the tensors that keep them mapped."""
    num_places = inbox_bytes(size, MAX_BYTES, NUM_PROGRAMS) // WORD_BYTES
    names = [str(folder / f"inbox{number}") for number in range(size)]
    files = [torch.from_file(name, True, num_places, dtype=torch.int32) for name in names]
    addresses = [file.data_ptr() for file in files]
    cpu = torch.device("cpu")
    return PeerInbox.over(rank, addresses, MAX_BYTES, cpu, NUM_PROGRAMS), files


def device_inbox(rank: int, size: int, folder: Path) -> tuple[PeerInbox, PeerMemory]:
    """In device memory; handles are told through files."""
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    memory = PeerMemory(inbox_bytes(size, MAX_BYTES, NUM_PROGRAMS))
    written = folder / f"written{rank}"
    written.write_bytes(memory.handle)
    written.rename(folder / f"handle{rank}")
    handles = [_when_there(folder / f"handle{number}") for number in range(size)]
    addresses = [
        memory.address if number == rank else memory.open(handle)
        for number, handle in enumerate(handles)
    ]
    return PeerInbox.over(rank, addresses, MAX_BYTES, device, NUM_PROGRAMS), memory


def _when_there(path: Path) -> bytes:
    while not path.exists():
        time.sleep(0.01)
    return path.read_bytes()


def num_wrong(calls: Sequence[Call], *, captured: bool) -> int:
    """Results that differ, over one round or, in a graph, several."""
    for call in calls:
        call.fill(0)
    for call in calls:
        call.run()
    differing = sum(call.differs() for call in calls)
    if not captured:
        return differing
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call.run()
    for round_number in range(1, NUM_REPLAYS + 1):
        for call in calls:
            call.fill(round_number)
        graph.replay()
        differing += sum(call.differs() for call in calls)
    return differing


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--wrong", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    on_gpu = arguments.device == "cuda"
    connect = device_inbox if on_gpu else mapped_inbox
    inbox, kept = connect(arguments.rank, arguments.size, arguments.folder)
    differing = 0
    for overlap in (False, True) if on_gpu else (False,):
        calls = [
            Call(
                number,
                torch.bfloat16 if on_gpu and overlap and dtype is torch.float16 else dtype,
                inbox,
                wrong=arguments.wrong,
                overlap=overlap,
            )
            for number, (_, dtype, _, _) in enumerate(CALLS)
        ]
        differing += num_wrong(calls, captured=on_gpu)
    del kept
    return differing


if __name__ == "__main__":
    sys.exit(main())
