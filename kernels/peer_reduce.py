"""Sum of one message per rank, left on every rank, for messages of a decode step.

Every rank sends its own message straight into the inboxes of the others (kernels/peer_inbox.py)
and adds what arrives, in the order of the ranks, in fp32: all ranks get the same bits. A large
message of four or more ranks makes two trips instead: every rank adds up one slice of each tile
and sends the sum of it to the others, the same bits with 2 / ranks of the bytes.

With a residual the result is residual + sum, rounded once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.launch import check_interpretable, check_same_device, overlap_options
from kernels.overlap import follow
from kernels.peer_inbox import NUM_TURNS, WORD_BYTES, ZERO_WORD, PeerInbox

SIZES = (2, 4, 8)
KINDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
ZERO = tl.constexpr(ZERO_WORD)


@dataclass(frozen=True)
class PeerTile:
    """How the programs of a launch take a message."""

    num_words: int
    """of one program at a time; a power of two, at most WORDS_QUANTUM"""
    warps: int
    sliced: bool = False
    """in two trips"""


WHOLE_TILES = ((4096, PeerTile(128, 2)), (32768, PeerTile(256, 4)), (None, PeerTile(1024, 8)))
SLICED_TILES = (
    (131072, PeerTile(512, 1, sliced=True)),
    (None, PeerTile(1024, 2, sliced=True)),
)
"""(up to this many words, tile), measured with two ranks and with four"""
MOST_WHOLE = {4: 65536, 8: 32768}
"""words above which so many ranks take two trips"""


@triton.jit
def unpack(words, KIND: tl.constexpr):
    """The first and second number of each word, in fp32; a word of fp32 has one only."""
    if KIND == "fp32":
        first = words.to(tl.float32, bitcast=True)
        second = first
    elif KIND == "bf16":
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & -65536).to(tl.float32, bitcast=True)
    else:
        first = (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return first, second


@triton.jit
def pack(first, second, KIND: tl.constexpr):
    """The reverse of unpack; rounds to nearest."""
    if KIND == "fp32":
        words = first.to(tl.int32, bitcast=True)
    else:
        kind: tl.constexpr = tl.bfloat16 if KIND == "bf16" else tl.float16
        low = first.to(kind).to(tl.int16, bitcast=True).to(tl.int32)
        high = second.to(kind).to(tl.int16, bitcast=True).to(tl.int32)
        words = (low & 0xFFFF) | (high << 16)
    return words


@triton.jit
def sendable(words):
    """The words, none of which looks like an empty place."""
    return tl.where(words == 0, ZERO, words)


@triton.jit
def received(words):
    """The reverse of sendable; a lone -0.0 becomes 0.0, on every rank alike."""
    return tl.where(words == ZERO, 0, words)


@triton.jit
def inbox_of(addresses, rank: tl.constexpr):
    """Where the inbox of a rank begins."""
    inbox = addresses[rank].to(tl.pointer_type(tl.int32))
    return tl.multiple_of(inbox, 16)


@triton.jit
def add_arrived(
    own, places, stride, inside, RANK: tl.constexpr, SIZE: tl.constexpr, KIND: tl.constexpr
):
    """(sum of the first numbers, of the second, whether words are missing) of what has arrived by
    now at these places; `stride` lies between two ranks' places."""
    first = tl.zeros(own.shape, tl.float32)
    second = tl.zeros(own.shape, tl.float32)
    missing = tl.zeros(own.shape, tl.int32)
    for source in tl.static_range(SIZE):
        words = own
        if source != RANK:
            words = tl.load(places + source * stride, inside, other=ZERO, volatile=True)
            missing |= (words == 0).to(tl.int32)
        one, other = unpack(words, KIND)
        first += one
        second += other
    return first, second, tl.max(missing, 0)


@triton.jit
def add_all(
    own, places, stride, inside, RANK: tl.constexpr, SIZE: tl.constexpr, KIND: tl.constexpr
):
    """Both sums, once every rank's words are there. All ranks are looked at together: one after
    the other each would cost its own way to memory."""
    first, second, missing = add_arrived(own, places, stride, inside, RANK, SIZE, KIND)
    while missing != 0:
        first, second, missing = add_arrived(own, places, stride, inside, RANK, SIZE, KIND)
    empty(places, stride, inside, RANK, SIZE)
    return first, second


@triton.jit
def empty(places, stride, inside, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Make room for the turn after the next."""
    for source in tl.static_range(SIZE):
        if source != RANK:
            tl.store(places + source * stride, 0, inside)


@triton.jit
def total(
    own,
    residual_ptr,
    inside,
    places,
    stride,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """Words of the result."""
    first, second = add_all(own, places, stride, inside, RANK, SIZE, KIND)
    if RESIDUAL:
        one, other = unpack(tl.load(residual_ptr, inside, other=0), KIND)
        first += one
        second += other
    return pack(first, second, KIND)


@triton.jit
def reduce_tiles(
    input_ptr,
    residual_ptr,
    output_ptr,
    addresses,
    num_words,
    place,
    stride,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
    RESIDUAL: tl.constexpr,
    TILE: tl.constexpr,
):
    """Every rank sends its tiles to all others and adds up all."""
    columns = tl.arange(0, TILE)
    start = tl.program_id(0) * TILE
    step = tl.num_programs(0) * TILE
    within = place + RANK * stride
    for tile in range(start, num_words, step):
        inside = tile + columns < num_words
        words = sendable(tl.load(input_ptr + tile + columns, inside, other=0))
        for distance in tl.static_range(1, SIZE):
            inbox = inbox_of(addresses, (RANK + distance) % SIZE)
            tl.store(inbox + within + columns, words, inside)
        within += TILE
    places = inbox_of(addresses, RANK) + place
    for tile in range(start, num_words, step):
        inside = tile + columns < num_words
        own = tl.load(input_ptr + tile + columns, inside, other=0)
        words = total(
            own,
            residual_ptr + tile + columns,
            inside,
            places + columns,
            stride,
            RANK,
            SIZE,
            KIND,
            RESIDUAL,
        )
        tl.store(output_ptr + tile + columns, words, inside)
        places += TILE


@triton.jit
def send_slices(
    input_ptr,
    addresses,
    num_words,
    place,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Slice r of every tile goes to rank r."""
    SLICE: tl.constexpr = TILE // SIZE
    columns = tl.arange(0, SLICE)
    for tile in range(tl.program_id(0) * TILE, num_words, tl.num_programs(0) * TILE):
        for distance in tl.static_range(1, SIZE):
            here = tile + (RANK + distance) % SIZE * SLICE + columns
            inside = here < num_words
            words = tl.load(input_ptr + here, inside, other=0)
            inbox = inbox_of(addresses, (RANK + distance) % SIZE)
            tl.store(inbox + place + columns, sendable(words), inside)
        place += SLICE


@triton.jit
def reduce_slices(
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
):
    """Add up this rank's slice of every tile; the sums go to all others."""
    SLICE: tl.constexpr = TILE // SIZE
    columns = tl.arange(0, SLICE)
    places = inbox_of(addresses, RANK) + place
    for tile in range(tl.program_id(0) * TILE, num_words, tl.num_programs(0) * TILE):
        here = tile + RANK * SLICE + columns
        inside = here < num_words
        own = tl.load(input_ptr + here, inside, other=0)
        words = total(
            own,
            residual_ptr + here,
            inside,
            places + columns,
            stride,
            RANK,
            SIZE,
            KIND,
            RESIDUAL,
        )
        for distance in tl.static_range(1, SIZE):
            inbox = inbox_of(addresses, (RANK + distance) % SIZE)
            tl.store(inbox + sum_place + columns, sendable(words), inside)
        tl.store(output_ptr + here, received(words), inside)
        places += SLICE
        sum_place += SLICE


@triton.jit
def copy_arrived(
    output_ptr,
    start,
    num_words,
    places,
    stride,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    SLICE: tl.constexpr,
):
    """Copy what has arrived by now of a tile's sums, and say whether words are missing."""
    columns = tl.arange(0, SLICE)
    missing = tl.zeros([SLICE], tl.int32)
    for source in tl.static_range(SIZE):
        if source != RANK:
            here = start + source * SLICE + columns
            inside = here < num_words
            words = tl.load(places + source * stride + columns, inside, other=ZERO, volatile=True)
            missing |= (words == 0).to(tl.int32)
            tl.store(output_ptr + here, received(words), inside)
    return tl.max(missing, 0)


@triton.jit
def gather_slices(
    output_ptr,
    addresses,
    num_words,
    sum_place,
    stride,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Take the other ranks' sums."""
    SLICE: tl.constexpr = TILE // SIZE
    columns = tl.arange(0, SLICE)
    places = inbox_of(addresses, RANK) + sum_place
    for tile in range(tl.program_id(0) * TILE, num_words, tl.num_programs(0) * TILE):
        missing = copy_arrived(output_ptr, tile, num_words, places, stride, RANK, SIZE, SLICE)
        while missing != 0:
            missing = copy_arrived(output_ptr, tile, num_words, places, stride, RANK, SIZE, SLICE)
        for source in tl.static_range(SIZE):
            if source != RANK:
                inside = tile + source * SLICE + columns < num_words
                tl.store(places + source * stride + columns, 0, inside)
        places += SLICE


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
        reduce_slices(
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
        )
        gather_slices(output_ptr, addresses, num_words, sum_place, stride, RANK, SIZE, TILE)
    else:
        reduce_tiles(
            input_ptr,
            residual_ptr,
            output_ptr,
            addresses,
            num_words,
            place,
            stride,
            RANK,
            SIZE,
            KIND,
            RESIDUAL,
            TILE,
        )
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
    """Write the sum of all ranks' `message` (+ this rank's `residual`) into `output`.

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
    tile = tile or peer_tile(num_words, inbox.size)
    words = message.view(-1).view(torch.int32)
    peer_reduce_kernel[(min(inbox.num_programs, triton.cdiv(num_words, tile.num_words)),)](
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
