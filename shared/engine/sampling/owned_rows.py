"""Rows of a table on the device, each belonging to an object of the host while batches have it."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch

from shared.engine.sampling.logit_bias import LogitBias
from shared.engine.sampling.token_counts import TokenCounts
from shared.engine.sampling.upload import upload

Owner = TypeVar("Owner")


class OwnedRows(Generic[Owner]):
    """A table [rows, V] that grows with the owners of one batch.

    An owner keeps its row from one batch to the next. Left out of a batch, it loses the row, and
    gets a newly written one when it is back: what the device did to it in between may be undone.
    """

    def __init__(
        self,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
        write: Callable[[torch.Tensor, Owner], None],
    ) -> None:
        self.table = torch.zeros(0, vocab_size, dtype=dtype, device=device)
        self._write = write
        self._rows: dict[int, tuple[Owner, int]] = {}
        self._free: list[int] = []

    def of(self, owners: Sequence[Owner | None]) -> list[int]:
        """The row of each owner of this batch, -1 for None."""
        before, self._rows = self._rows, {}
        for owner in owners:
            if owner is not None and id(owner) in before:
                self._rows[id(owner)] = before.pop(id(owner))
        self._free += [row for _, row in before.values()]
        return [-1 if owner is None else self._row_of(owner) for owner in owners]

    def drop(self, owner: Owner) -> None:
        """Have this owner's row, if it has one, written again."""
        known = self._rows.pop(id(owner), None)
        if known is not None:
            self._free.append(known[1])

    def _row_of(self, owner: Owner) -> int:
        known = self._rows.get(id(owner))
        if known is not None:
            return known[1]
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._write(self.table[row], owner)
        self._rows[id(owner)] = (owner, row)
        return row

    def _grow(self) -> None:
        count = len(self.table)
        larger = self.table.new_zeros(max(4, 2 * count), self.table.shape[1])
        larger[:count] = self.table
        self.table = larger
        self._free = list(range(len(larger) - 1, count - 1, -1))


def count_rows(vocab_size: int, device: torch.device) -> OwnedRows[TokenCounts]:
    """i32: 0 for a token the sequence does not have, else 1 more than its output has."""
    return OwnedRows(vocab_size, torch.int32, device, _write_counts)


def bias_rows(vocab_size: int, device: torch.device) -> OwnedRows[LogitBias]:
    """f32: what is added to each logit."""
    return OwnedRows(vocab_size, torch.float32, device, _write_bias)


def _write_counts(row: torch.Tensor, counts: TokenCounts) -> None:
    numbers = np.frombuffer(counts.num_in_output, np.int32) + np.int32(1)
    _write(row, np.frombuffer(counts.token_ids, np.int64), numbers)


def _write_bias(row: torch.Tensor, bias: LogitBias) -> None:
    _write(row, np.frombuffer(bias.token_ids, np.int64), np.frombuffer(bias.added, np.float32))


def _write(row: torch.Tensor, token_ids: np.ndarray, values: np.ndarray) -> None:
    row.zero_()
    inside = (token_ids >= 0) & (token_ids < len(row))
    if inside.any():
        row[upload(token_ids[inside], row.device)] = upload(values[inside], row.device)
