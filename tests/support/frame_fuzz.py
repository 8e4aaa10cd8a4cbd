"""What frames of strangers cost a worker: `python -m tests.support.frame_fuzz [NUM_FRAMES]`.

Four kinds: damaged ASSIGN frames, damaged frames of another worker and its agents' cards, random
bytes, and frames made to be large in memory (empty arrays, arrays in arrays, announced items that
never come). Nothing but ProtocolError may come of one, or CopyError of a card, the large ones are
never taken, and memory may grow by MAX_GROWTH_MIB over all of them. Exit status 1 otherwise.
"""

import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace

from shared.errors import ProtocolError
from shared.kv.columns import pack_ids, pack_words
from shared.mover.agent import CARDS, pack_cards, unpack_cards
from shared.mover.agent import Card as CardOfRank
from shared.mover.copies import CopyError
from shared.protocol import (
    WORKER_CODEC,
    Assign,
    Attempt,
    Message,
    Receive,
    Sampling,
    TokenRun,
    Work,
)
from shared.transfer.frames import CODEC as PEER_CODEC
from shared.transfer.frames import (
    Blocks,
    Card,
    Frame,
    Give,
    Open,
    Opened,
    Pool,
    Read,
    Refused,
    Seal,
    ShortSeal,
    Verified,
    Verify,
    Watermark,
    unpack_give,
    unpack_manifest,
    unpack_publication,
    unpack_tags,
)
from shared.worker.acceptance import Acceptance

NUM_FRAMES = 1_000_000
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


IDS, WORDS = pack_ids([1, 2, 3]), pack_words([7, 8, 9])
RUN = TokenRun("r" * 32, 0, 0, (5,))
OF_A_PEER = (
    *(Open(WORK.attempt, "t" * 32, "p.1", "f" * 32), Opened(100), Read(0, 3, 0, 1)),
    *(Watermark(0, 0, IDS, WORDS, WORDS), Blocks(0, IDS, WORDS), Seal(IDS, WORDS, WORDS, RUN)),
    *(ShortSeal(2, RUN), Verify(0, IDS, WORDS), Verified(True), Refused("expired")),
    *(Pool(24, WORDS, b"card", link="nccl"), Card(b"card"), Give(IDS, 0, 1)),
)
CARD = CARDS.encode(CardOfRank(2**40, 2**30, "VRAM", 0, b"m" * 200))


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
            yield damaged(good, rng, cut=number % 4 == 1)


def damaged(frame: bytes, rng: random.Random, *, cut: bool) -> bytes:
    """In a few bytes; `cut`: its end is gone too."""
    found = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found[: rng.randrange(len(found))] if cut else found)


def frames_of_peers(num_frames: int, rng: random.Random) -> Iterator[bytes]:
    """As they come after the CRC: a peer that means harm computes a right one."""
    good = [PEER_CODEC.encode(frame) for frame in OF_A_PEER]
    for number in range(num_frames):
        yield damaged(rng.choice(good), rng, cut=number % 4 == 1)


def read_of_peer(frame: bytes) -> str:
    """What a worker does with it: `closed` or `taken`."""
    try:
        found: Frame = PEER_CODEC.decode(frame)
        match found:
            case Watermark():
                unpack_publication(found)
            case Seal():
                unpack_manifest(found)
            case Blocks() | Verify():
                unpack_tags(found.block_ids, found.generations)
            case Give():
                unpack_give(found)
    except ProtocolError:
        return "closed"
    return "taken"


def read_cards(packed: bytes) -> str:
    """What a mover does with them: `closed` or `taken`."""
    try:
        for card in unpack_cards(packed):
            CARDS.decode(card)
    except (CopyError, ProtocolError):
        return "closed"
    return "taken"


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
    for frame in frames(num_frames // 2, rng):
        fates[read(frame)] += 1
    for frame in frames_of_peers(num_frames // 4, rng):
        fates[read_of_peer(frame)] += 1
    for number in range(num_frames // 4):
        packed = pack_cards([damaged(CARD, rng, cut=False), CARD])
        fates[read_cards(damaged(packed, rng, cut=False) if number % 2 else packed)] += 1
    return fates, peak_mib() - before_mib


def main(arguments: list[str]) -> int:
    fates, growth_mib = run(int(arguments[0]) if arguments else NUM_FRAMES)
    sys.stdout.write(f"{fates}; peak memory +{growth_mib:.1f} MiB of {MAX_GROWTH_MIB}\n")
    return 0 if growth_mib <= MAX_GROWTH_MIB else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
