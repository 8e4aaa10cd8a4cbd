"""A step's input on a GPU: tensors at fixed addresses, refilled by one copy and one kernel.

What a captured graph reads must lie where it lay when it was captured, so the tensors are as large
as any step can need and a step uses the front of them. Everything happens in the order of the
device's stream: a step's input is replaced once the step before it has read its own.
"""

from itertools import cycle

import torch

from kernels.elementwise.prepare_step import prepare_step
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.scheduling.batch import (
    BatchShape,
    HostBatch,
    Section,
    packed_length,
    section_span,
)

NUM_STAGES = 4
"""host buffers in turn: a copy out of one may still be under way when the next step is packed"""


WIDTH_UNIT = 16
"""of block tables: wherever a step's prompts begin in them, their address is one that kernels were
compiled for"""


class StepInputs:
    """The input tensors of one device."""

    def __init__(
        self, max_tokens: int, max_sequences: int, max_table_width: int, device: torch.device
    ) -> None:
        self.max_sequences = max_sequences
        max_table_width = -(-max_table_width // WIDTH_UNIT) * WIDTH_UNIT
        rows = max(max_tokens, max_sequences)
        largest = BatchShape(rows, max_sequences, max_sequences, max_sequences, max_table_width)
        self._input_ids, self._positions, self._slots = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._context_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros(max_sequences, max_table_width, dtype=torch.int32, device=device)
        length = packed_length(largest)
        self._packed = torch.empty(length, dtype=torch.int32, device=device)
        self._stages = cycle(tuple(_Stage(length, device) for _ in range(NUM_STAGES)))

    def decode_batch(self, num_rows: int) -> BatchTensors:
        """The tensors of a step in which `num_rows` sequences decode, and all are sampled."""
        empty = self._input_ids[:0]
        return BatchTensors(
            input_ids=self._input_ids[:num_rows],
            positions=self._positions[:num_rows],
            slot_mapping=self._slots[:num_rows],
            context_lens=self._context_lens[:num_rows],
            block_tables=self._tables[:num_rows],
            logits_rows=empty,
            copies=empty.view(0, 2),
            query_lens=(1,) * num_rows,
            context_lens_host=(),
        )

    def upload(
        self, batch: HostBatch, previous: torch.Tensor | None, num_rows: int | None = None
    ) -> BatchTensors:
        """Start the transfer. `num_rows`: pad to that many rows, all of one token each; the added
        ones belong to no sequence. `previous`: see shared.engine.running.model_runner.Runner."""
        shape = batch.shape
        rows = num_rows or shape.num_tokens
        stage = next(self._stages)
        packed = self._packed[: batch.packed.shape[0]]
        stage.fill(batch, packed)
        prepare_step(
            packed,
            previous if batch.awaits_tokens else None,
            shape.num_tokens,
            section_span(shape, Section.BLOCK_TABLES).start,
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
        return BatchTensors(
            input_ids=self._input_ids[:rows],
            positions=self._positions[:rows],
            slot_mapping=self._slots[:rows],
            context_lens=self._context_lens[: shape.num_sequences],
            block_tables=self._tables[: shape.num_sequences],
            logits_rows=self.logits_rows(shape),
            copies=packed[section_span(shape, Section.COPIES)].long().view(-1, 2),
            query_lens=tuple(batch.query_lens.tolist()),
            context_lens_host=tuple(batch.context_lens.tolist()),
        )

    def logits_rows(self, shape: BatchShape) -> torch.Tensor:
        """Of the step of this shape that was uploaded last."""
        return self._packed[section_span(shape, Section.LOGITS_ROWS)].long()


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
