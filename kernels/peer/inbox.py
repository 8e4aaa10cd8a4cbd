"""Where ranks leave words for each other: one inbox per rank, in memory that every rank can write.

An inbox holds `NUM_TURNS` x size x programs x `words_per_program` places of a word of four bytes. A
place is empty while it is zero; whoever takes a word out of it empties it again, and a word that is
zero is sent as `ZERO_WORD`. So a word tells by itself that it has arrived: no flag, no fence, one
trip over the link and no byte more than the message has. A program of one rank writes only to the
places of the same program of the other ranks, so no place ever has two writers.

Two sets of places take turns. A rank is in turn t + 2 only after it got words of turn t + 1 from
every other rank, which each sent in a kernel after the one that emptied the places of turn t:
nobody writes to a place that is not empty. Turns are counted on the device, one counter per
program, so that a captured graph can be replayed; all ranks must therefore reduce the same shapes
in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

NUM_TURNS = 2
WORD_BYTES = 4
ZERO_WORD = -(2**31)
"""what is sent for a word of zeros: one number of it, or the upper of two, is then -0.0, which
changes no sum"""
NUM_PROGRAMS = 128
"""most programs of one launch, where the inbox's owner wants no other number"""
WORDS_QUANTUM = 1024
"""words of the largest tile; a program's places are a multiple of it"""


@dataclass(frozen=True)
class PeerInbox:
    """One rank's view of all inboxes."""

    rank: int
    addresses: tuple[int, ...]
    """where each rank's inbox begins, as this process sees it"""
    counters: torch.Tensor
    """i32[num_programs] on the device: turns each program has taken part in"""
    words_per_program: int

    @classmethod
    def over(
        cls,
        rank: int,
        addresses: Sequence[int],
        max_bytes: int,
        device: torch.device,
        num_programs: int = NUM_PROGRAMS,
    ) -> "PeerInbox":
        """Over zeroed memory at these addresses, each of `inbox_bytes` for the same numbers."""
        counters = torch.zeros(num_programs, dtype=torch.int32, device=device)
        return cls(rank, tuple(addresses), counters, _words_per_program(max_bytes, num_programs))

    @property
    def size(self) -> int:
        return len(self.addresses)

    @property
    def num_programs(self) -> int:
        """Most programs of one launch."""
        return self.counters.shape[0]

    @property
    def max_bytes(self) -> int:
        """Largest message."""
        return self.words_per_program * self.num_programs * WORD_BYTES


def inbox_bytes(size: int, max_bytes: int, num_programs: int = NUM_PROGRAMS) -> int:
    """Memory of one rank's inbox for messages of up to `max_bytes`."""
    num_words = num_programs * _words_per_program(max_bytes, num_programs)
    return NUM_TURNS * size * num_words * WORD_BYTES


def _words_per_program(max_bytes: int, num_programs: int) -> int:
    quantum = num_programs * WORDS_QUANTUM
    return -(-max_bytes // (WORD_BYTES * quantum)) * WORDS_QUANTUM
