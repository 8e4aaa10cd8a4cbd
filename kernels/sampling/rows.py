"""What the sampling kernels are told of each row: one packed i64 table per step, and the memory
they work in. Imports no triton.

Floats are stored as their bits, an f32 in the low half. Behind the rows of the table come the
lists that rows point into: token ids that must not end a row yet, and words of grammar bitmasks.
"""

from dataclasses import dataclass

import torch

from kernels.launching.launch import next_power_of_two

WEIGHT_ONE = 2.0**40
"""integer weight of the likeliest token; a vocabulary of such weights sums below 2**63"""

KIND = 0
"""how the row is chosen: one of the three below"""
SEED = 1
POSITION = 2
TEMPERATURE = 3
"""f32"""
TOP_K = 4
"""0 keeps all"""
TOP_P = 5
"""f64"""
LEAST_KEY = 6
"""tokens whose weight has a smaller key are left out (min_p); 0 keeps all"""
ADJUSTED = 7
"""row of the adjusted logits that replaces the raw one; -1: none"""
COUNTS = 8
"""row of the table of token counts, -1: none"""
BIAS = 9
"""row of the table of biases, -1: none"""
REPETITION = 10
"""f32, as the next two"""
FREQUENCY = 11
PRESENCE = 12
ENDINGS = 13
"""where its token ids to mask begin in the packed table; the next field counts them"""
NUM_ENDINGS = 14
ALLOWED = 15
"""where its bitmask begins in the packed table, in i32 words; 0: none"""
FIELDS = 16

GREEDY, PLAIN, ORDERED = 0, 1, 2
"""the likeliest; a draw in the order of ids; a draw in the order of weights, for top-k and top-p"""

MAX_VOCAB = 2**22
"""as many weights of 2**40 sum below 2**63"""
CHUNK = 2048
"""tokens whose weights a plain draw adds up at a time"""
NUM_PIVOTS = 8
"""weights that one pass of the search compares with"""
PART_FIELDS = 16
"""i64 words a program leaves for the others of its row per pass"""
MAX_LIVE = 2048
"""tokens that a program of the search lists to go on with"""
GRAIN = 16
"""a list's length is a multiple of it, so that loads are wide"""
MAX_SPLITS = 64
"""programs that share one row"""


def weight_key(weight: int) -> int:
    """Smallest key of a weight in [0, 2**40] that is not smaller, see sampling_weights.py."""
    shift = max(0, weight.bit_length() - 24)
    return -(-weight >> shift) + (shift << 23)


@dataclass(frozen=True)
class SamplingScratch:
    """Memory of the sampling kernels for up to `max_rows` rows; one per stream."""

    num_multiprocessors: int
    peaks: torch.Tensor
    """f32[max_rows, MAX_SPLITS]: largest logit of each part of a row"""
    peak_ids: torch.Tensor
    """i32[max_rows, MAX_SPLITS]: its lowest token id"""
    sums: torch.Tensor
    """i64[max_rows, chunks]: weights of each chunk"""
    parts: torch.Tensor
    """i64[max_rows, 2, MAX_SPLITS, PART_FIELDS]: what programs that share a row tell each other;
    only as many rows as can be shared"""
    arrivals: torch.Tensor
    """i32[max_rows]: how often one of them has come to wait for the others"""
    live: torch.Tensor
    """f32[programs, MAX_LIVE + GRAIN]: logits that a program of the search has listed"""
    lengths: torch.Tensor
    """i32[programs]"""

    @classmethod
    def allocate(
        cls,
        max_rows: int,
        vocab_size: int,
        device: torch.device | str,
        num_multiprocessors: int | None = None,
    ) -> "SamplingScratch":
        """`num_multiprocessors`: default: the device's. ValueError for a vocabulary beyond
        MAX_VOCAB."""
        if not 0 < vocab_size <= MAX_VOCAB:
            raise ValueError(f"a vocabulary of {vocab_size}, need 1 to {MAX_VOCAB}")
        where = torch.device(device)
        if num_multiprocessors is None:
            num_multiprocessors = _num_multiprocessors(where)
        chunks = next_power_of_two(-(-vocab_size // CHUNK))
        programs = max(max_rows, num_multiprocessors)
        shared = min(max_rows, max(1, num_multiprocessors // 2))
        return cls(
            num_multiprocessors=num_multiprocessors,
            peaks=torch.empty(max_rows, MAX_SPLITS, dtype=torch.float32, device=where),
            peak_ids=torch.empty(max_rows, MAX_SPLITS, dtype=torch.int32, device=where),
            sums=torch.empty(max_rows, chunks, dtype=torch.int64, device=where),
            parts=torch.empty(shared, 2, MAX_SPLITS, PART_FIELDS, dtype=torch.int64, device=where),
            arrivals=torch.zeros(max_rows, dtype=torch.int32, device=where),
            live=torch.empty(programs, MAX_LIVE + GRAIN, dtype=torch.float32, device=where),
            lengths=torch.zeros(programs, dtype=torch.int32, device=where),
        )

    @property
    def max_rows(self) -> int:
        return self.peaks.shape[0]

    def peak_splits(self, num_rows: int) -> int:
        """Parts a row is cut into for its largest logit: about four programs per
        multiprocessor."""
        return _at_most(4 * self.num_multiprocessors // num_rows)

    def search_splits(self, num_rows: int) -> int:
        """Programs that search one row together. They wait for each other, so all of a launch
        must run at once: one per multiprocessor."""
        return _at_most(self.num_multiprocessors // num_rows)


def _num_multiprocessors(device: torch.device) -> int:
    """1 for what is no GPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _at_most(limit: int) -> int:
    """Largest power of two up to `limit` and MAX_SPLITS, at least 1."""
    return min(MAX_SPLITS, 1 << max(0, limit.bit_length() - 1))
