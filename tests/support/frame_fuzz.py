"""What frames of strangers cost a worker: `python -m tests.support.frame_fuzz [NUM_FRAMES]`.

Three kinds: damaged ASSIGN frames, random bytes, and frames made to be large in memory (empty
arrays, arrays in arrays, announced items that never come). Nothing but ProtocolError may come of
one, the large ones are never taken, and memory may grow by MAX_GROWTH_MIB over all of them. Exit
status 1 otherwise.
"""

import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace

from shared.errors import ProtocolError
from shared.protocol import WORKER_CODEC, Assign, Attempt, Message, Receive, Sampling, Work
from shared.worker.acceptance import Acceptance

NUM_FRAMES = 200_000
MAX_GROWTH_MIB = 16
ACCEPTANCE = Acceptance(vocab_size=32_000, max_model_len=8192)
WORK = Work(
    Attempt("r" * 32, 0),
    tuple(range(600)),
    500,
    bytes(32),
    Sampling(8, stop_token_ids=(1, 2), logit_bias=((1, 1.0), (2, -1.0))),
)
ASSIGN = Assign(WORK, "prefill-0.1", "prefill", ticket="t" * 32)


def heavy_frames(size: int) -> list[bytes]:
    """Each as large as a worker takes, and made of what costs most memory a byte."""
    return [
        b"\xdd" + (size - 5).to_bytes(4, "big") + b"\x90" * (size - 5),
        (b"\xdc\xff\xff" * size)[:size],
        (b"\xdd\x00\xff\xff\xff" * size)[:size],
        (b"\xdc\x04\x00" * size)[:size],
        b"\xdc\x04\x00" + (b"\xdc\x04\x00" + b"\x90" * 1024) * (size // 1027),
        b"\xdc\x04\x00" + (b"\xdc\x04\x00" + b"\xa2ab" * 1024) * (size // 3075),
        b"\xdf" + (size // 4).to_bytes(4, "big") + b"\xa2ab\x80" * (size // 4),
        b"\x91" * size,
    ]


def frames(num_frames: int, rng: random.Random) -> Iterator[bytes]:
    heavy = heavy_frames(ACCEPTANCE.max_frame_bytes)
    good = WORKER_CODEC.encode(ASSIGN)
    for number in range(num_frames):
        if number % 500 == 0:
            yield heavy[number // 500 % len(heavy)]
        elif number % 4 == 0:
            yield rng.randbytes(rng.randrange(200))
        else:
            damaged = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            yield bytes(damaged[: rng.randrange(len(damaged))] if number % 4 == 1 else damaged)


def read(frame: bytes) -> str:
    """What a worker does with it: `closed`, `refused` or `taken`."""
    try:
        message: Message = WORKER_CODEC.decode(frame)
    except ProtocolError:
        return "closed"
    if isinstance(message, Assign | Receive) and ACCEPTANCE.rejection(message) is not None:
        return "refused"
    return "taken"


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(num_frames: int) -> tuple[dict[str, int], float]:
    """How many of each outcome, and by how much the peak of resident memory grew, in MiB."""
    rng = random.Random(13)  # noqa: S311
    fates = {"closed": 0, "refused": 0, "taken": 0}
    assert read(WORKER_CODEC.encode(ASSIGN)) == "taken"
    assert (
        read(WORKER_CODEC.encode(replace(ASSIGN, work=replace(WORK, hash_root=b"")))) == "refused"
    )
    assert all(read(frame) == "closed" for frame in heavy_frames(1024))
    before_mib = peak_mib()
    for frame in frames(num_frames, rng):
        fates[read(frame)] += 1
    return fates, peak_mib() - before_mib


def main(arguments: list[str]) -> int:
    fates, growth_mib = run(int(arguments[0]) if arguments else NUM_FRAMES)
    sys.stdout.write(f"{fates}; peak memory +{growth_mib:.1f} MiB of {MAX_GROWTH_MIB}\n")
    return 0 if growth_mib <= MAX_GROWTH_MIB else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
