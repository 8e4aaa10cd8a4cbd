"""Sum of one message per rank, left on every rank, for messages of a decode step.

Every rank sends its own message straight into the inboxes of the others (kernels/peer_inbox.py)
and adds what arrives, in the order of the ranks, in fp32: all ranks get the same bits. Each byte
crosses the link once, as four bytes of content in eight, which is what saves the second trip for
a flag; for large messages that no longer pays and a library's all-reduce is the better one.

With a residual the result is residual + sum, rounded once.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.launch import check_interpretable, check_same_device, overlap_options
from kernels.overlap import follow
from kernels.peer_inbox import NUM_TURNS, WORD_BYTES, WORDS_QUANTUM, PeerInbox

SIZES = (2, 4, 8)
KINDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
TILES = ((4096, 128, 2), (32768, 256, 4), (None, 1024, 8))
"""up to this many words: (words of one tile, warps)"""


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
def inbox_of(address_ptr, rank):
    """Where the inbox of a rank begins."""
    inbox = tl.load(address_ptr + rank).to(tl.pointer_type(tl.int64))
    return tl.multiple_of(inbox, 16)


@triton.jit
def send_tiles(
    input_ptr,
    address_ptr,
    turn,
    num_words,
    words_per_program,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TURNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write this program's tiles of the message into the inboxes of all other ranks."""
    program = tl.program_id(0)
    columns = tl.arange(0, TILE)
    stamp = turn.to(tl.int64) << 32
    place = ((turn & (TURNS - 1)) * SIZE + RANK) * PROGRAMS + program
    place = place.to(tl.int64) * words_per_program
    for start in range(program * TILE, num_words, tl.num_programs(0) * TILE):
        inside = start + columns < num_words
        words = tl.load(input_ptr + start + columns, inside, other=0)
        stamped = (words.to(tl.int64) & 0xFFFFFFFF) | stamp
        for step in tl.static_range(1, SIZE):
            inbox = inbox_of(address_ptr, (RANK + step) % SIZE)
            tl.store(inbox + place + columns, stamped, inside)
        place += TILE


@triton.jit
def await_words(places, inside, turn):
    """The words at these places, once all of them are of this turn."""
    stamp = turn.to(tl.int64)
    stamped = tl.load(places, inside, other=stamp << 32, volatile=True)
    while tl.max(((stamped >> 32) != stamp).to(tl.int32), 0) != 0:
        stamped = tl.load(places, inside, other=stamp << 32, volatile=True)
    return stamped.to(tl.int32)


@triton.jit
def add_tiles(
    input_ptr,
    residual_ptr,
    output_ptr,
    address_ptr,
    turn,
    num_words,
    words_per_program,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TURNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    KIND: tl.constexpr,
    RESIDUAL: tl.constexpr,
    TILE: tl.constexpr,
):
    """Wait for this program's tiles of the other ranks and write the sum."""
    program = tl.program_id(0)
    columns = tl.arange(0, TILE)
    inbox = inbox_of(address_ptr, RANK)
    for start in range(program * TILE, num_words, tl.num_programs(0) * TILE):
        inside = start + columns < num_words
        own = tl.load(input_ptr + start + columns, inside, other=0)
        within = (start - program * TILE) // tl.num_programs(0)
        first = tl.zeros([TILE], tl.float32)
        second = tl.zeros([TILE], tl.float32)
        for source in tl.static_range(SIZE):
            words = own
            if source != RANK:
                place = ((turn & (TURNS - 1)) * SIZE + source) * PROGRAMS + program
                place = place.to(tl.int64) * words_per_program + within
                words = await_words(inbox + place + columns, inside, turn)
            one, other = unpack(words, KIND)
            first += one
            second += other
        if RESIDUAL:
            words = tl.load(residual_ptr + start + columns, inside, other=0)
            one, other = unpack(words, KIND)
            first += one
            second += other
        tl.store(output_ptr + start + columns, pack(first, second, KIND), inside)


@triton.jit
def peer_reduce_kernel(
    input_ptr,
    residual_ptr,
    output_ptr,
    address_ptr,
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
    OVERLAP: tl.constexpr,
):
    """Grid (programs,), the same on all ranks. Messages are i32 words, whatever they hold."""
    follow(OVERLAP)
    counter = counter_ptr + tl.program_id(0)
    turn = tl.load(counter) + 1
    send_tiles(
        input_ptr,
        address_ptr,
        turn,
        num_words,
        words_per_program,
        RANK,
        SIZE,
        TURNS,
        PROGRAMS,
        TILE,
    )
    add_tiles(
        input_ptr,
        residual_ptr,
        output_ptr,
        address_ptr,
        turn,
        num_words,
        words_per_program,
        RANK,
        SIZE,
        TURNS,
        PROGRAMS,
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
) -> None:
    """Write the sum of all ranks' `message` (+ this rank's `residual`) into `output`.

    All ranks call it with equal shapes, in the same order; it ends once all of them have. All
    tensors are contiguous, of one 32- or 16-bit floating type, a whole number of words long and at
    most `inbox.max_bytes`; `output` may be `message` or `residual` itself. Nothing is allocated
    and the host waits for nothing. `overlap`: programmatic dependent launch, from sm_90 on.
    ValueError or TypeError for what does not fit.
    """
    _check(message, inbox, output, residual)
    num_words = message.numel() * message.element_size() // WORD_BYTES
    if num_words == 0:
        return
    tile, warps = peer_tile(num_words)
    words = message.view(-1).view(torch.int32)
    peer_reduce_kernel[(min(inbox.num_programs, triton.cdiv(num_words, tile)),)](
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
        TILE=tile,
        OVERLAP=overlap,
        num_warps=warps,
        **overlap_options(overlap),
    )


def peer_tile(num_words: int) -> tuple[int, int]:
    """(words, warps) of one program's tile."""
    for most, tile, warps in TILES:
        if most is None or num_words <= most:
            assert tile <= WORDS_QUANTUM
            return tile, warps
    raise AssertionError("the table ends with a row for all sizes")


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
    check_same_device(*tensors, inbox.addresses, inbox.counters)
    if isinstance(peer_reduce_kernel, InterpretedFunction):
        check_interpretable(message)
