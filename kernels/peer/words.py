"""Words of peer_reduce: how numbers are packed in them, how they look while they are on their way,
and how a program awaits and adds those of all ranks.

A place of an inbox is empty while it is zero (kernels/peer/inbox.py).
"""

import triton
import triton.language as tl

from kernels.peer.inbox import ZERO_WORD

ZERO = tl.constexpr(ZERO_WORD)


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
