"""Choosing the next token of every row on the device: the launcher of the sampling kernels.

    peaks     every row's largest logit, by several programs per row
    likeliest the token of greedy rows
    masses, draw   rows with a temperature, and min_p, alone
    search    rows with top-k or top-p

Kernels whose kind of row a batch lacks are not launched. Weights are integers and sums exact, so
a row's token is that of shared/engine/sampling/sampler.py on a CPU for the same logits, seed and
position, with one reservation: exp2 here and exp there may differ in the last bits of a weight.
That decides where the draw or a cut falls within some 1e-6 of a border between two tokens, and may
order two tokens otherwise whose weights differ by no more than these bits.
"""

import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.launching.launch import (
    ceil_div,
    check_interpretable,
    check_same_device,
    overlap_options,
)
from kernels.sampling.adjust import check_tables
from kernels.sampling.draw import draw_kernel, masses_kernel
from kernels.sampling.peaks import likeliest_kernel, peaks_kernel
from kernels.sampling.rows import (
    CHUNK,
    FIELDS,
    GRAIN,
    GREEDY,
    ORDERED,
    PLAIN,
    SamplingScratch,
)
from kernels.sampling.search import search_kernel

PEAK_WARPS = 4
CHUNK_WARPS = 8
SEARCH_VECTOR = 4
SEARCH_TILES = {True: (8, 120), False: (16, 64)}
"""by whether programs share a row: warps, and registers of a thread, so that two programs share a
multiprocessor. Measured on an H200: a row of its own takes 10 % less time with 16 warps, a shared
one, which waits more than it adds, 20 % more"""
ALL_GREEDY = frozenset({GREEDY})


def choose_tokens(
    logits: torch.Tensor,
    rows: torch.Tensor | None,
    kinds: frozenset[int],
    scratch: SamplingScratch,
    token_ids: torch.Tensor,
    adjusted: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    overlap: bool = False,
) -> None:
    """Write the token of each row of logits [R, V], float32, bfloat16 or float16, into i64[R].

    `rows`: i64, R * FIELDS and more, see sampling_rows.py; None: all greedy. `kinds`: those that
    occur in it. Rows of `adjusted` f32[A, V] replace raw ones, rows of `counts` i32[C, V] are told
    of the token; both only where a row names one. Logits may be strided, V must be contiguous.
    Nothing is allocated and the host waits for nothing. `overlap`: programmatic dependent launch,
    from sm_90 on. ValueError or TypeError for what does not fit.
    """
    _check(logits, rows, kinds, scratch, token_ids)
    check_tables(logits, adjusted, counts=counts)
    if not logits.shape[0]:
        return
    launch = _Launch(logits, rows, scratch, token_ids, adjusted, counts, overlap)
    launch.peaks()
    if GREEDY in kinds:
        launch.likeliest()
    if PLAIN in kinds:
        launch.draw()
    if ORDERED in kinds:
        launch.search()


class _Launch:
    """The launches of one call and what they share."""

    def __init__(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor | None,
        scratch: SamplingScratch,
        token_ids: torch.Tensor,
        adjusted: torch.Tensor | None,
        counts: torch.Tensor | None,
        overlap: bool,
    ) -> None:
        self.num_rows, self.vocab_size = logits.shape
        self.logits = logits
        self.scratch = scratch
        self.token_ids = token_ids
        self.rows = token_ids if rows is None else rows
        self.counts = scratch.arrivals if counts is None else counts
        self.adjusted = scratch.peaks if adjusted is None else adjusted
        self.has_rows = rows is not None
        self.vector = 16 // logits.element_size()
        self.peak_splits = scratch.peak_splits(self.num_rows)
        self.options = {"HAS_ADJUSTED": adjusted is not None, "OVERLAP": overlap}
        self.pdl = overlap_options(overlap)

    def peaks(self) -> None:
        threads = 32 * PEAK_WARPS
        tile = threads * self.vector
        size = ceil_div(ceil_div(self.vocab_size, self.peak_splits), tile) * tile
        peaks_kernel[(self.num_rows, self.peak_splits)](
            self.logits,
            self.adjusted,
            self.rows,
            self.scratch.peaks,
            self.scratch.peak_ids,
            self.scratch.arrivals,
            self.vocab_size,
            self.logits.stride(0),
            size,
            THREADS=threads,
            VECTOR=self.vector,
            **self.options,
            num_warps=PEAK_WARPS,
            **self.pdl,
        )

    def likeliest(self) -> None:
        likeliest_kernel[(self.num_rows,)](
            self.rows,
            self.scratch.peaks,
            self.scratch.peak_ids,
            self.counts,
            self.token_ids,
            self.vocab_size,
            self.peak_splits,
            HAS_ROWS=self.has_rows,
            OVERLAP=self.options["OVERLAP"],
            num_warps=1,
            **self.pdl,
        )

    def draw(self) -> None:
        num_chunks = ceil_div(self.vocab_size, CHUNK)
        programs = 8 * self.scratch.num_multiprocessors
        each = max(1, self.num_rows * num_chunks // programs)
        masses_kernel[(self.num_rows, ceil_div(num_chunks, each))](
            self.logits,
            self.adjusted,
            self.rows,
            self.scratch.peaks,
            self.scratch.peak_ids,
            self.scratch.sums,
            self.vocab_size,
            self.logits.stride(0),
            self.peak_splits,
            num_chunks,
            each,
            MAX_CHUNKS=self.scratch.sums.shape[1],
            **self.options,
            num_warps=CHUNK_WARPS,
            **self.pdl,
        )
        draw_kernel[(self.num_rows,)](
            self.logits,
            self.adjusted,
            self.rows,
            self.scratch.peaks,
            self.scratch.peak_ids,
            self.scratch.sums,
            self.counts,
            self.token_ids,
            self.vocab_size,
            self.logits.stride(0),
            self.peak_splits,
            num_chunks,
            MAX_CHUNKS=self.scratch.sums.shape[1],
            **self.options,
            num_warps=CHUNK_WARPS,
            **self.pdl,
        )

    def search(self) -> None:
        splits = self.scratch.search_splits(self.num_rows)
        num_warps, registers = SEARCH_TILES[splits > 1]
        threads = 32 * num_warps
        tile = threads * SEARCH_VECTOR
        size = ceil_div(ceil_div(self.vocab_size, splits), tile) * tile
        search_kernel[(self.num_rows * splits,)](
            self.logits,
            self.adjusted,
            self.rows,
            self.scratch.peaks,
            self.scratch.peak_ids,
            self.scratch.parts,
            self.scratch.arrivals,
            self.scratch.live,
            self.scratch.lengths,
            self.counts,
            self.token_ids,
            self.vocab_size,
            self.logits.stride(0),
            size,
            self.peak_splits,
            splits,
            ALIGNMENT=GRAIN if self.vocab_size % GRAIN == 0 else 1,
            THREADS=threads,
            VECTOR=SEARCH_VECTOR,
            **self.options,
            num_warps=num_warps,
            maxnreg=registers,
            **self.pdl,
        )


def _check(
    logits: torch.Tensor,
    rows: torch.Tensor | None,
    kinds: frozenset[int],
    scratch: SamplingScratch,
    token_ids: torch.Tensor,
) -> None:
    if logits.dim() != 2 or logits.shape[0] > scratch.max_rows:
        raise ValueError(f"logits {tuple(logits.shape)}, scratch for {scratch.max_rows} rows")
    num_rows, vocab_size = logits.shape
    if not 0 < vocab_size <= scratch.sums.shape[1] * CHUNK:
        raise ValueError(
            f"a vocabulary of {vocab_size}, scratch has {scratch.sums.shape[1]} chunks"
        )
    if num_rows and logits.stride(1) != 1:
        raise ValueError("a row of logits must be contiguous")
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"logits are {logits.dtype}")
    if token_ids.dtype is not torch.int64 or token_ids.shape != (num_rows,):
        raise TypeError(f"token_ids are {token_ids.dtype}{tuple(token_ids.shape)}")
    if rows is None:
        if kinds != ALL_GREEDY:
            raise ValueError(f"kinds {sorted(kinds)} without a table of rows")
    elif rows.dtype is not torch.int64 or rows.numel() < num_rows * FIELDS:
        raise TypeError(f"rows are {rows.dtype}{tuple(rows.shape)} for {num_rows}")
    check_same_device(logits, token_ids, scratch.peaks, logits if rows is None else rows)
    if isinstance(peaks_kernel, InterpretedFunction):
        check_interpretable(logits)
