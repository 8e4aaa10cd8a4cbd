"""Time peer_reduce and NCCL's all-reduce in CUDA graphs and print one JSON line per size.

    python3 -m kernels.peer.bench [--ranks 2] [--kib 8 16 64 512]

One process per GPU, spawned here. A graph runs 64 reductions one after the other over random
bf16 rows; ranks meet before each replay, and the slowest rank's time counts. Results are compared
with the torch reference first. `--sweep` prints every tile for every size instead.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import triton

from kernels.launching.graph_time import need_gpus
from kernels.peer import reference as reference_peer_reduce
from kernels.peer.inbox import PeerInbox, inbox_bytes
from kernels.peer.memory import HANDLE_BYTES, PeerMemory
from kernels.peer.reduce import PeerTile, peer_reduce

SIZES_KIB = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MAX_BYTES = 4 * 2**20
WIDTH = 4096
"""numbers of a row: 8 KiB in bf16"""
NUM_CALLS = 64
NUM_REPLAYS = 12
NUM_WARM_UPS = 3
SWEPT = (
    *(PeerTile(*tile) for tile in ((128, 2), (256, 2), (256, 4), (512, 4), (1024, 4), (1024, 8))),
    *(
        PeerTile(*tile, sliced=True)
        for tile in ((256, 1), (512, 1), (512, 2), (1024, 2), (1024, 4))
    ),
)
QUIET = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}
"""no NVLink multicast, and no port that other hosts reach"""


def connect(rank: int, size: int, folder: Path) -> tuple[PeerInbox, PeerMemory]:
    """Join the other ranks, and map their inboxes."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=device)
    memory = PeerMemory(inbox_bytes(size, MAX_BYTES))
    own = torch.tensor(list(memory.handle), dtype=torch.uint8, device=device)
    handles = torch.empty(size, HANDLE_BYTES, dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(handles.view(-1), own)
    addresses = [
        memory.address if number == rank else memory.open(bytes(handle))
        for number, handle in enumerate(handles.tolist())
    ]
    return PeerInbox.over(rank, addresses, MAX_BYTES, device), memory


def time_us(reduce: Callable[[], None]) -> float:
    """Median of a call, of the slowest rank."""
    reduce()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(NUM_CALLS):
            reduce()
    times = []
    for _ in range(NUM_WARM_UPS + NUM_REPLAYS):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / NUM_CALLS)
    slowest = torch.tensor(statistics.median(times[NUM_WARM_UPS:]), device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def check(inbox: PeerInbox, num_rows: int) -> None:
    """All ranks' rows, each drawn from its own seed."""
    rows = []
    for rank in range(inbox.size):
        generator = torch.Generator(device="cuda").manual_seed(rank)
        drawn = torch.randn(num_rows, WIDTH, device="cuda", generator=generator)
        rows.append(drawn.bfloat16())
    output, expected = torch.empty_like(rows[0]), torch.empty_like(rows[0])
    reference_peer_reduce.peer_reduce(rows, expected, rows[0])
    peer_reduce(rows[inbox.rank], inbox, output, rows[0])
    if not torch.equal(output, expected):
        raise ArithmeticError(f"rank {inbox.rank}: {num_rows} rows differ from the reference")


def result(inbox: PeerInbox, kib: int) -> dict[str, object]:
    num_rows = kib * 1024 // (2 * WIDTH)
    check(inbox, num_rows)
    rows = torch.randn(num_rows, WIDTH, device="cuda").bfloat16()
    residual, output = torch.randn_like(rows), torch.empty_like(rows)
    scratch = rows.clone()

    def peers(*, added: bool, overlap: bool) -> float:
        return time_us(
            lambda: peer_reduce(rows, inbox, output, residual if added else None, overlap=overlap)
        )

    return {
        "kernel": "peer_reduce",
        "gpu": torch.cuda.get_device_name(),
        "ranks": inbox.size,
        "versions": f"torch {torch.__version__}, triton {triton.__version__}, "
        f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}",
        "kib": kib,
        "us": round(peers(added=False, overlap=True), 2),
        "us_with_residual": round(peers(added=True, overlap=True), 2),
        "us_without_overlap": round(peers(added=False, overlap=False), 2),
        "nccl_us": round(time_us(lambda: dist.all_reduce(scratch)), 2),
    }


def swept(inbox: PeerInbox, kib: int) -> dict[str, object]:
    """Microseconds of every tile."""
    rows = torch.randn(kib * 1024 // (2 * WIDTH), WIDTH, device="cuda").bfloat16()
    output = torch.empty_like(rows)
    line: dict[str, object] = {"kib": kib, "ranks": inbox.size}
    for tile in SWEPT:

        def reduce(tile: PeerTile = tile) -> None:
            peer_reduce(rows, inbox, output, overlap=True, tile=tile)

        name = f"{'sliced ' if tile.sliced else ''}{tile.num_words}x{tile.warps}"
        line[name] = round(time_us(reduce), 2)
    return line


def run_rank(rank: int, arguments: argparse.Namespace) -> None:
    inbox, _ = connect(rank, arguments.ranks, arguments.folder)
    measure = swept if arguments.sweep else result
    for kib in arguments.kib:
        line = measure(inbox, kib)
        if rank == 0:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    dist.destroy_process_group()


def run_all(arguments: Sequence[str], num_ranks: int) -> int:
    """Spawn the ranks; the largest exit status."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "kernels.peer.bench", *arguments]
        ranks = [
            subprocess.Popen(  # noqa: S603  (this file)
                [*command, "--rank", str(rank), "--folder", folder], env=os.environ | QUIET
            )
            for rank in range(num_ranks)
        ]
        try:
            while any(rank.poll() is None for rank in ranks) and not any(
                rank.returncode for rank in ranks
            ):
                time.sleep(0.1)
        finally:
            for rank in ranks:
                rank.kill()  # a rank whose peer has ended would wait for it forever
        return max(abs(rank.wait()) for rank in ranks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kib", type=int, nargs="+", default=list(SIZES_KIB))
    parser.add_argument("--sweep", action="store_true", help="every tile for every size")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is None:
        need_gpus(arguments.ranks)
        return run_all(sys.argv[1:], arguments.ranks)
    run_rank(arguments.rank, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
