"""Sum of one message per rank, left on every rank, for messages of a decode step.

Every rank sends its own message straight into the inboxes of the others (kernels/peer/inbox.py)
and adds what arrives, in the order of the ranks, in fp32: all ranks get the same bits. A large
message of four or more ranks makes two trips instead: every rank adds up one slice of each tile
and sends the sum of it to the others, the same bits with 2 / ranks of the bytes.

With a residual, which is the same on all ranks, the result is residual + sum, rounded once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.launching.launch import (
    ceil_div,
    check_interpretable,
    check_same_device,
    overlap_options,
)
from kernels.launching.overlap import follow
from kernels.peer.inbox import NUM_TURNS, WORD_BYTES, WORDS_QUANTUM, PeerInbox
from kernels.peer.slices import gather_slices, send_slices
from kernels.peer.words import add_all, inbox_of, pack, received, sendable, unpack

SIZES = (2, 4, 8)
KINDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class PeerTile:
    """How the programs of a launch take a message."""

    num_words: int
    """of one program at a time; a power of two, at most WORDS_QUANTUM"""
    warps: int
    sliced: bool = False
    """in two trips"""

    def check(self, num_ranks: int) -> None:
        """ValueError where two threads would take the same word: one could empty its place before
        the other has seen it."""
        together = self.num_words // (num_ranks if self.sliced else 1)
        power = self.num_words & (self.num_words - 1) == 0
        if not power or self.num_words > WORDS_QUANTUM or together < 32 * self.warps:
            raise ValueError(
                f"{self} for {num_ranks} ranks: a tile is a power of two of at most "
                f"{WORDS_QUANTUM} words, and of at least one a thread, sliced one of each slice"
            )


WHOLE_TILES = ((4096, PeerTile(128, 2)), (32768, PeerTile(256, 4)), (None, PeerTile(1024, 8)))
SLICED_TILES = (
    (131072, PeerTile(512, 1, sliced=True)),
    (None, PeerTile(1024, 2, sliced=True)),
)
"""(up to this many words, tile), measured with two ranks and with four, as is what follows; that
with eight is a guess from their bytes"""
MOST_WHOLE = {4: 65536, 8: 32768}
"""number of ranks -> words above which they take two trips"""


@triton.jit
def send_tiles(
    input_ptr,
    addresses,
    num_words,
    place,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Every tile goes to all other ranks."""
    columns = tl.arange(0, TILE)
    for tile in range(tl.program_id(0) * TILE, num_words, tl.num_programs(0) * TILE):
        inside = tile + columns < num_words
        words = sendable(tl.load(input_ptr + tile + columns, inside, other=0))
        for distance in tl.static_range(1, SIZE):
            inbox = inbox_of(addresses, (RANK + distance) % SIZE)
            tl.store(inbox + place + columns, words, inside)
        place += TILE


@triton.jit
def add_tiles(
    input_ptr,
    residual_ptr,
    output_ptr,
    addresses,
    num_words,
    place,
    stride,
    sum_place,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
    RESIDUAL: tl.constexpr,
    TILE: tl.constexpr,
    SLICED: tl.constexpr,
):
    """Add up every tile, or this rank's slice of it, whose sum goes to all others."""
    WIDTH: tl.constexpr = TILE // SIZE if SLICED else TILE
    OWN: tl.constexpr = RANK * WIDTH if SLICED else 0
    columns = tl.arange(0, WIDTH)
    places = inbox_of(addresses, RANK) + place
    for tile in range(tl.program_id(0) * TILE, num_words, tl.num_programs(0) * TILE):
        here = tile + OWN + columns
        inside = here < num_words
        own = tl.load(input_ptr + here, inside, other=0)
        first, second = add_all(own, places + columns, stride, inside, RANK, SIZE, KIND)
        if RESIDUAL:
            one, other = unpack(tl.load(residual_ptr + here, inside, other=0), KIND)
            first += one
            second += other
        words = pack(first, second, KIND)
        if SLICED:
            for distance in tl.static_range(1, SIZE):
                inbox = inbox_of(addresses, (RANK + distance) % SIZE)
                tl.store(inbox + sum_place + columns, sendable(words), inside)
            words = received(words)
            sum_place += WIDTH
        tl.store(output_ptr + here, words, inside)
        places += WIDTH


@triton.jit
def peer_reduce_kernel(
    input_ptr,
    residual_ptr,
    output_ptr,
    addresses,
    counter_ptr,
    num_words,
    words_per_program,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TURNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    KIND: tl.constexpr,
    RESIDUAL: tl.constexpr,
    TILE: tl.constexpr,
    SLICED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (programs,), the same on all ranks. Messages are i32 words, whatever they hold."""
    follow(OVERLAP)
    counter = counter_ptr + tl.program_id(0)
    turn = tl.load(counter) + 1
    stride = PROGRAMS * words_per_program
    place = (turn & (TURNS - 1)) * SIZE * stride + tl.program_id(0) * words_per_program
    sum_place = place + words_per_program // 2
    own = RANK * stride
    if SLICED:
        send_slices(input_ptr, addresses, num_words, place + own, RANK, SIZE, TILE)
    else:
        send_tiles(input_ptr, addresses, num_words, place + own, RANK, SIZE, TILE)
    add_tiles(
        input_ptr,
        residual_ptr,
        output_ptr,
        addresses,
        num_words,
        place,
        stride,
        sum_place + own,
        RANK,
        SIZE,
        KIND,
        RESIDUAL,
        TILE,
        SLICED,
    )
    if SLICED:
        gather_slices(output_ptr, addresses, num_words, sum_place, stride, RANK, SIZE, TILE)
    tl.debug_barrier()  # every warp has read the counter
    tl.store(counter, turn)


def peer_reduce(
    message: torch.Tensor,
    inbox: PeerInbox,
    output: torch.Tensor,
    residual: torch.Tensor | None = None,
    *,
    overlap: bool = False,
    tile: PeerTile | None = None,
) -> None:
    """Write the sum of all ranks' `message` (+ `residual`, equal on all) into `output`.

    All ranks call it with equal shapes, in the same order; it ends once all of them have. All
    tensors are contiguous, of one 32- or 16-bit floating type, a whole number of words long and at
    most `inbox.max_bytes`; `output` may be `message` or `residual` itself. Nothing is allocated
    and the host waits for nothing. `overlap`: programmatic dependent launch, from sm_90 on.
    `tile`, the same on all ranks: another than the table's. ValueError or TypeError for what does
    not fit.
    """
    _check(message, inbox, output, residual)
    num_words = message.numel() * message.element_size() // WORD_BYTES
    if num_words == 0:
        return
    if tile is None:
        tile = peer_tile(num_words, inbox.size)
    else:
        tile.check(inbox.size)
    words = message.view(-1).view(torch.int32)
    peer_reduce_kernel[(min(inbox.num_programs, ceil_div(num_words, tile.num_words)),)](
        words,
        words if residual is None else residual.view(-1).view(torch.int32),
        output.view(-1).view(torch.int32),
        inbox.addresses,
        inbox.counters,
        num_words,
        inbox.words_per_program,
        RANK=inbox.rank,
        SIZE=inbox.size,
        TURNS=NUM_TURNS,
        PROGRAMS=inbox.num_programs,
        KIND=KINDS[message.dtype],
        RESIDUAL=residual is not None,
        TILE=tile.num_words,
        SLICED=tile.sliced,
        OVERLAP=overlap,
        num_warps=tile.warps,
        **overlap_options(overlap),
    )


def peer_tile(num_words: int, num_ranks: int) -> PeerTile:
    """The measured choice for a message."""
    sliced = num_words > MOST_WHOLE.get(num_ranks, num_words)
    table = SLICED_TILES if sliced else WHOLE_TILES
    return next(tile for most, tile in table if most is None or num_words <= most)


def _check(
    message: torch.Tensor,
    inbox: PeerInbox,
    output: torch.Tensor,
    residual: torch.Tensor | None,
) -> None:
    tensors = [message, output] if residual is None else [message, output, residual]
    if inbox.size not in SIZES or not 0 <= inbox.rank < inbox.size:
        raise ValueError(f"rank {inbox.rank} of {inbox.size}, need one of {SIZES} ranks")
    if message.dtype not in KINDS or any(item.dtype != message.dtype for item in tensors):
        raise TypeError(f"{[item.dtype for item in tensors]}, need one of {list(KINDS)}")
    if any(item.shape != message.shape or not item.is_contiguous() for item in tensors):
        raise ValueError(f"{[tuple(item.shape) for item in tensors]} must be equal and contiguous")
    num_bytes = message.numel() * message.element_size()
    if num_bytes % WORD_BYTES or num_bytes > inbox.max_bytes:
        raise ValueError(f"{num_bytes} bytes, need whole words and at most {inbox.max_bytes}")
    check_same_device(*tensors, inbox.counters)
    if isinstance(peer_reduce_kernel, InterpretedFunction):
        check_interpretable(message)
