"""One step's input: all scheduled tokens packed in one row, never padded.

Sequence s owns the query_lens[s] rows after those of the sequences before it. Its K and V lie in
the blocks of block_tables[s]; the new tokens' go to slot_mapping (slot = block_id * block_size +
offset) before attention reads them. A step is put together on the host in one array, so that one
copy carries it to a device, or one message to another process.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Run
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shared.engine.sampling.score_plan import ScorePlan
from shared.engine.scheduling.sequence import Sequence

SKIP_SLOT = -1
"""of a token whose K and V are stored nowhere"""


class ScheduledSequence(NamedTuple):
    """Tokens [start, start + num_tokens) of one sequence, computed in this step."""

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    """its last token's logits are wanted: nothing known comes after it"""
    prefill: bool
    """prompt work, as opposed to feeding back a sampled token"""


class BlockCopy(NamedTuple):
    """Copy-on-write: block `src` is copied to `dst` before anything of the step is written."""

    src: int
    dst: int


class BatchShape(NamedTuple):
    """How many of everything a step has."""

    num_tokens: int
    num_sequences: int
    num_logits_rows: int
    num_copies: int
    table_width: int
    """blocks of the longest sequence"""

    @property
    def has_chunks(self) -> bool:
        """Of prompts; others have one token each."""
        return self.num_tokens > self.num_sequences


class Section(IntEnum):
    """What HostBatch.packed consists of, in this order; HostBatch's properties say what each is."""

    INPUT_IDS = 0
    POSITIONS = 1
    SLOT_MAPPING = 2
    CONTEXT_LENS = 3
    QUERY_LENS = 4
    LOGITS_ROWS = 5
    COPIES = 6
    BLOCK_TABLES = 7


@dataclass(frozen=True)
class HostBatch:
    """One step on the host, in one array: T tokens, S sequences, R rows to sample, C copies, block
    tables of width W."""

    shape: BatchShape
    packed: NDArray[np.int32]
    """all sections, one after the other"""
    scores: ScorePlan | None = None
    """rows of prompts whose log-probabilities are wanted; None: no rows"""

    @classmethod
    def of(cls, sections: Mapping[Section, ArrayLike]) -> "HostBatch":
        """The step of these sections, all of them."""
        arrays = [np.asarray(sections[section], dtype=np.int32) for section in Section]
        shape = BatchShape(
            num_tokens=arrays[Section.INPUT_IDS].size,
            num_sequences=arrays[Section.CONTEXT_LENS].size,
            num_logits_rows=arrays[Section.LOGITS_ROWS].size,
            num_copies=arrays[Section.COPIES].size // 2,
            table_width=arrays[Section.BLOCK_TABLES].shape[1],
        )
        return cls(shape, np.concatenate([array.reshape(-1) for array in arrays]))

    @classmethod
    def of_numbers(cls, shape: BatchShape, numbers: NDArray[np.int32]) -> "HostBatch":
        """The step of this shape that says so of itself; as many as `may_have` allows."""
        packed, more = np.split(numbers, [packed_length(shape)])
        if not len(more):
            return cls(shape, packed)
        rows, token_ids = np.split(more[1:], 2)
        return cls(shape, packed, ScorePlan(rows, token_ids, int(more[0])))

    @property
    def numbers(self) -> NDArray[np.int32]:
        """All of it but the shape: the sections and, where rows are scored, how many alternatives,
        the rows and the tokens that follow them."""
        if (scores := self.scores) is None:
            return self.packed
        num_top = np.array([scores.num_top], dtype=np.int32)
        return np.concatenate([self.packed, num_top, scores.rows, scores.token_ids])

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """[T]; -1 - r stands for the token that row r of the step before sampled, which only the
        device knows yet"""
        return self._section(Section.INPUT_IDS)

    @property
    def positions(self) -> NDArray[np.int32]:
        """[T], index of each token in its sequence"""
        return self._section(Section.POSITIONS)

    @property
    def slot_mapping(self) -> NDArray[np.int32]:
        """[T]"""
        return self._section(Section.SLOT_MAPPING)

    @property
    def context_lens(self) -> NDArray[np.int32]:
        """[S], KV length after this step"""
        return self._section(Section.CONTEXT_LENS)

    @property
    def query_lens(self) -> NDArray[np.int32]:
        """[S], tokens of each sequence in this step"""
        return self._section(Section.QUERY_LENS)

    @property
    def logits_rows(self) -> NDArray[np.int32]:
        """[R], rows of T whose logits are wanted"""
        return self._section(Section.LOGITS_ROWS)

    @property
    def copies(self) -> NDArray[np.int32]:
        """[C, 2] of (src, dst) block ids: pool[dst] = pool[src] first of all; C is mostly 0"""
        return self._section(Section.COPIES).reshape(-1, 2)

    @property
    def block_tables(self) -> NDArray[np.int32]:
        """[S, W]; unused entries are 0 and must not be read"""
        size = self.shape.num_sequences, self.shape.table_width
        return self._section(Section.BLOCK_TABLES).reshape(size)

    @property
    def awaits_tokens(self) -> bool:
        """Some input is a token of the step before."""
        return bool((self.input_ids < 0).any())

    def _section(self, section: Section) -> NDArray[np.int32]:
        return self.packed[section_span(self.shape, section)]


def section_span(shape: BatchShape, section: Section) -> slice:
    """Where a section lies in `HostBatch.packed`; the last one ends with it."""
    tokens, sequences = shape.num_tokens, shape.num_sequences
    lengths = (
        *(tokens,) * 3,
        *(sequences,) * 2,
        shape.num_logits_rows,
        2 * shape.num_copies,
        sequences * shape.table_width,
    )
    start = sum(lengths[:section])
    return slice(start, start + lengths[section])


def packed_length(shape: BatchShape) -> int:
    """Numbers in `HostBatch.packed`."""
    return int(section_span(shape, Section.BLOCK_TABLES).stop)


def may_have(shape: BatchShape, length: int) -> bool:
    """Whether a step of this shape can have `length` numbers."""
    if min(shape) < 0:
        return False
    num_more = length - packed_length(shape)
    return num_more == 0 or (num_more > 1 and num_more % 2 == 1)


def pack_batch(
    scheduled: Run[ScheduledSequence],
    copies: Run[BlockCopy],
    block_size: int,
    rows_ahead: Mapping[Sequence, int] | None = None,
) -> HostBatch:
    """Pack the scheduled tokens.

    `rows_ahead`: the row of the step before that samples the next token of a sequence, where that
    token is not on the host yet.
    """
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logits_rows: list[int] = []
    for sequence, start, num_tokens, samples, _ in scheduled:
        end = start + num_tokens
        if start < len(sequence.token_ids):
            input_ids += sequence.token_ids[start:end]
        else:
            assert rows_ahead is not None
            input_ids.append(-1 - rows_ahead[sequence])
        if num_tokens == 1:
            block, offset = divmod(start, block_size)
            positions.append(start)
            slots.append(sequence.block_table[block] * block_size + offset)
        else:
            positions += range(start, end)
            slots += slot_range(sequence.block_table, start, end, block_size)
        if samples:
            logits_rows.append(len(input_ids) - 1)
    context_lens = [item.start + item.num_tokens for item in scheduled]
    return HostBatch.of(
        {
            Section.INPUT_IDS: input_ids,
            Section.POSITIONS: positions,
            Section.SLOT_MAPPING: slots,
            Section.CONTEXT_LENS: context_lens,
            Section.QUERY_LENS: [item.num_tokens for item in scheduled],
            Section.LOGITS_ROWS: logits_rows,
            Section.COPIES: copies,
            Section.BLOCK_TABLES: _block_tables(scheduled, context_lens, block_size),
        }
    )


def slot_range(block_table: Run[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of positions [start, end) of a sequence with this block table."""
    slots: list[int] = []
    while start < end:
        block, offset = divmod(start, block_size)
        stop = min(end, start - offset + block_size)
        first = block_table[block] * block_size + offset
        slots += range(first, first + stop - start)
        start = stop
    return slots


def _block_tables(
    scheduled: Run[ScheduledSequence], context_lens: Run[int], block_size: int
) -> NDArray[np.int32]:
    """[S, W]: of each table only the blocks that hold positions of this step's context."""
    widths = [-(-length // block_size) for length in context_lens]
    tables = np.zeros((len(widths), max(widths, default=0)), dtype=np.int32)
    for row, (item, width) in enumerate(zip(scheduled, widths, strict=True)):
        tables[row, :width] = np.frombuffer(item.sequence.block_table, dtype=np.int32)[:width]
    return tables
