"""Chooses tokens on a GPU without waiting for it; the ids reach the host by a stream of their own.

The same choice as `Sampler` makes on a CPU (kernels/sampling/choose_tokens.py says what may
differ), so that a step can be launched while the one before it still runs: its input ids are
`device_ids` of that one, and what penalties count is kept on the device, where each sampled token
is added at once.
"""

from collections.abc import Sequence

import torch

from kernels.launching.launch import next_power_of_two
from kernels.sampling.adjust import adjust_logits
from kernels.sampling.choose_tokens import ALL_GREEDY, choose_tokens
from kernels.sampling.rows import SamplingScratch
from shared.engine.sampling.device_tokens import IN_FLIGHT, Turn
from shared.engine.sampling.owned_rows import bias_rows, count_rows
from shared.engine.sampling.packed_rows import Adjustment, PackedRows
from shared.engine.sampling.raw_logprobs import raw_logprobs
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampled_tokens import SampledTokens
from shared.engine.sampling.token_masks import awaits_more

MIN_ROWS = 32


class DeviceSampler:
    """Every way of choosing that a `Sampling` can name, for logits of one vocabulary on one device.

    All calls are made on one stream. A sequence's counts are read from the host when it comes into
    a batch without having been in the one before, at the position before; from then on they are
    the device's, and the host's may lag behind.
    """

    def __init__(
        self, vocab_size: int, device: torch.device, num_multiprocessors: int | None = None
    ) -> None:
        """`num_multiprocessors`: default: the device's."""
        self._device = device
        self._packed = PackedRows(vocab_size)
        self._counts = count_rows(vocab_size, device)
        self._biases = bias_rows(vocab_size, device)
        self._adjusted = torch.empty(0, vocab_size, dtype=torch.float32, device=device)
        self._num_multiprocessors = num_multiprocessors
        self._scratch = self._allocate(MIN_ROWS)
        copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._positions: dict[int, int] = {}
        """of the last batch, by the id of a row's counts"""
        self._turns = [Turn(device, copies) for _ in range(IN_FLIGHT)]
        self._next = 0

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> SampledTokens:
        """One token per row of logits, [R, V] of a float type, strided or not; nothing waits, and
        nothing is allocated beyond what the largest batch so far needed, but for logprobs and for
        rows that penalties or biases are new to."""
        turn = self._turns[self._next]
        self._next = (self._next + 1) % IN_FLIGHT
        token_ids = turn.begin(len(rows))
        if not rows:  # a chunk of a prompt: waiting for its tokens is waiting for the step
            return turn.send(None)
        if len(rows) > self._scratch.max_rows:
            self._scratch = self._allocate(next_power_of_two(len(rows)))
        constants = self._packed.constants(rows)
        kinds = frozenset([item[2] for item in constants])
        adjustments = self._adjustments(rows)
        table = adjusted = counts = None
        if adjustments or kinds != ALL_GREEDY:
            table = turn.upload(self._packed.pack(rows, constants, adjustments))
        if adjustments and table is not None:
            adjusted, counts = self._space(len(adjustments)), self._counts.table
            adjust_logits(logits, table, adjusted, self._biases.table, counts)
        choose_tokens(logits, table, kinds, self._scratch, token_ids, adjusted, counts)
        return turn.send(raw_logprobs(logits, token_ids, rows))

    def _allocate(self, max_rows: int) -> SamplingScratch:
        return SamplingScratch.allocate(
            max_rows, self._packed.vocab_size, self._device, self._num_multiprocessors
        )

    def _adjustments(self, rows: Sequence[SampleRow]) -> list[Adjustment]:
        indexes = [
            index
            for index, row in enumerate(rows)
            if row.bias is not None
            or row.counts is not None
            or row.allowed is not None
            or (row.sampling.min_tokens and awaits_more(row))
        ]
        positions = {id(rows[index].counts): rows[index].position for index in indexes}
        for index in indexes:
            row = rows[index]
            if row.counts is not None and self._positions.get(id(row.counts)) != row.position - 1:
                self._counts.drop(row.counts)
        self._positions = positions
        counts = self._counts.of([rows[index].counts for index in indexes])
        biases = self._biases.of([rows[index].bias for index in indexes])
        return [Adjustment(*item) for item in zip(indexes, counts, biases, strict=True)]

    def _space(self, count: int) -> torch.Tensor:
        """f32[at least count, V] to adjust logits in."""
        if count > len(self._adjusted):
            self._adjusted = self._adjusted.new_empty(
                next_power_of_two(count), self._adjusted.shape[1]
            )
        return self._adjusted
