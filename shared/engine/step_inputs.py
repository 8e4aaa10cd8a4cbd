"""A step's input on a GPU: tensors at fixed addresses, refilled by one copy and one kernel.

What a captured graph reads must lie where it lay when it was captured, so the tensors are as large
as any step can need and a step uses the front of them. Everything happens in the order of the
device's stream: a step's input is replaced once the step before it has read its own.
"""

from itertools import cycle

import torch

from kernels.prepare_step import prepare_step
from shared.engine.batch import BatchShape, BatchTensors, HostBatch, part_starts

NUM_STAGES = 4
"""host buffers in turn: a copy out of one may still be under way when the next step is packed"""


class StepInputs:
    """The input tensors of one device."""

    def __init__(
        self, max_tokens: int, max_sequences: int, max_table_width: int, device: torch.device
    ) -> None:
        self.max_sequences = max_sequences
        rows = max(max_tokens, max_sequences)
        largest = BatchShape(rows, max_sequences, max_sequences, max_sequences, max_table_width)
        self._input_ids, self._positions, self._slots = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._context_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros(max_sequences, max_table_width, dtype=torch.int32, device=device)
        length = part_starts(largest)[-1]
        self._packed = torch.empty(length, dtype=torch.int32, device=device)
        self._stages = cycle(tuple(_Stage(length, device) for _ in range(NUM_STAGES)))

    def decode_batch(self, num_rows: int) -> BatchTensors:
        """The tensors of a step in which `num_rows` sequences decode."""
        return self._tensors(num_rows, num_rows, (1,) * num_rows, ())

    def upload(
        self, batch: HostBatch, previous: torch.Tensor | None, num_rows: int | None = None
    ) -> BatchTensors:
        """Start the transfer. `num_rows`: pad to so many rows, all of one token each; the added
        ones belong to no sequence. `previous`: see shared.engine.model_runner.Runner."""
        shape = batch.shape
        rows = num_rows or shape.num_tokens
        stage = next(self._stages)
        packed = self._packed[: batch.packed.shape[0]]
        stage.fill(batch, packed)
        prepare_step(
            packed,
            previous if batch.awaits_tokens else None,
            shape.num_tokens,
            part_starts(shape)[7],
            (
                self._input_ids[:rows],
                self._positions[:rows],
                self._slots[:rows],
                self._context_lens[:rows],
                self._tables[: shape.num_sequences],
            ),
        )
        if num_rows is not None:
            return self.decode_batch(num_rows)
        return self._tensors(
            rows,
            shape.num_sequences,
            tuple(batch.query_lens.tolist()),
            tuple(batch.context_lens.tolist()),
        )

    def section(self, batch: HostBatch, part: int) -> torch.Tensor:
        """i64 copy of a part of the batch uploaded last."""
        starts = part_starts(batch.shape)
        return self._packed[starts[part] : starts[part + 1]].long()

    def _tensors(
        self, num_rows: int, num_sequences: int, query_lens: tuple[int, ...], lens: tuple[int, ...]
    ) -> BatchTensors:
        empty = self._input_ids[:0]
        return BatchTensors(
            input_ids=self._input_ids[:num_rows],
            positions=self._positions[:num_rows],
            slot_mapping=self._slots[:num_rows],
            cu_seqlens_q=self._context_lens[:0],
            context_lens=self._context_lens[:num_sequences],
            block_tables=self._tables[:num_sequences],
            logits_rows=empty,
            copies=empty.view(0, 2),
            query_lens=query_lens,
            context_lens_host=lens,
        )


class _Stage:
    """Memory a copy to the device starts from, pinned, and when it may be filled again."""

    def __init__(self, length: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._buffer = torch.empty(length, dtype=torch.int32, pin_memory=is_cuda)
        self._numbers = self._buffer.numpy()
        self._copied = torch.cuda.Event() if is_cuda else None

    def fill(self, batch: HostBatch, packed: torch.Tensor) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        length = batch.packed.shape[0]
        self._numbers[:length] = batch.packed
        packed.copy_(self._buffer[:length], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
