"""The rows of a step as the sampling kernels read them (kernels/sampling/rows.py).

What follows from a sequence's sampling alone is computed once and kept; a step looks it up.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernels.sampling import rows as fields
from shared.engine.sampling.random_draw import as_int64
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.token_masks import awaits_more
from shared.protocol import GREEDY_BELOW, Sampling

MAX_KNOWN = 4096
"""samplings kept; all are forgotten at once beyond that"""


class Constants(NamedTuple):
    """What a sampling alone decides."""

    sampling: Sampling
    """kept alive, so that its id stays its own"""
    place: int
    """of its fields in a table of all samplings"""
    kind: int
    """how a token is chosen, one of sampling_rows.py"""
    endings: tuple[int, ...]
    """tokens of the vocabulary that could end the request; none if it has no other"""


class Adjustment(NamedTuple):
    """A row whose logits are adjusted, and the rows it has of device tables, -1 for none."""

    row: int
    counts_row: int
    bias_row: int


class PackedRows:
    """Packs the rows of one vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._known: dict[int, Constants] = {}
        self._entries = np.zeros((0, fields.FIELDS), dtype=np.int64)

    def constants(self, rows: Sequence[SampleRow]) -> list[Constants]:
        """Of each row."""
        known = self._known
        try:
            return [known[id(row[0])] for row in rows]
        except KeyError:
            if len(known) + len(rows) > MAX_KNOWN:
                known.clear()
            needed = len(known) + len(rows)
            if needed > len(self._entries):
                self._entries = np.resize(self._entries, (2 * needed, fields.FIELDS))
            for row in rows:
                if id(row.sampling) not in known:
                    known[id(row.sampling)] = self._constants(row.sampling, len(known))
            return [known[id(row.sampling)] for row in rows]

    def pack(
        self,
        rows: Sequence[SampleRow],
        constants: Sequence[Constants],
        adjustments: Sequence[Adjustment],
    ) -> np.ndarray:
        """i64[at least rows * FIELDS]."""
        table = self._entries[[item[1] for item in constants]]
        table[:, fields.POSITION] = [row[1] for row in rows]
        lists: list[np.ndarray] = []
        end = table.size
        for place, (index, counts, bias) in enumerate(adjustments):
            row, entry = rows[index], table[index]
            entry[fields.ADJUSTED], entry[fields.COUNTS], entry[fields.BIAS] = place, counts, bias
            endings = constants[index].endings if awaits_more(row) else ()
            if row.allowed is not None:
                words = self._allowed(row.allowed.numpy(), endings)
                entry[fields.ALLOWED] = 2 * end
                lists.append(words)
                end += len(words)
            elif endings:
                entry[fields.ENDINGS], entry[fields.NUM_ENDINGS] = end, len(endings)
                lists.append(np.array(endings, dtype=np.int64))
                end += len(endings)
        return np.concatenate([table.reshape(-1), *lists]) if lists else table.reshape(-1)

    def _constants(self, sampling: Sampling, place: int) -> Constants:
        kind, entry = self._kind(sampling), self._entries[place]
        entry[:] = 0
        entry[fields.KIND] = kind
        entry[fields.SEED] = as_int64(sampling.seed)
        entry[fields.TOP_K] = sampling.top_k
        entry[fields.TOP_P] = np.float64(sampling.top_p).view(np.int64)
        if sampling.min_p > 0:
            entry[fields.LEAST_KEY] = fields.weight_key(
                math.ceil(sampling.min_p * fields.WEIGHT_ONE)
            )
        for field, value in (
            (fields.TEMPERATURE, sampling.temperature),
            (fields.REPETITION, sampling.repetition_penalty),
            (fields.FREQUENCY, sampling.frequency_penalty),
            (fields.PRESENCE, sampling.presence_penalty),
        ):
            entry[field] = np.float32(value).view(np.int32)
        entry[[fields.ADJUSTED, fields.COUNTS, fields.BIAS]] = -1
        endings = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            endings.update(sampling.eos_token_ids)
        inside = tuple(token_id for token_id in endings if 0 <= token_id < self.vocab_size)
        return Constants(sampling, place, kind, inside if len(inside) < self.vocab_size else ())

    def _kind(self, sampling: Sampling) -> int:
        if sampling.temperature < GREEDY_BELOW:
            return fields.GREEDY
        if sampling.top_k or sampling.top_p < 1.0:
            return fields.ORDERED
        return fields.PLAIN

    def _allowed(self, words: np.ndarray, endings: Sequence[int]) -> np.ndarray:
        """A grammar's bitmask over the vocabulary as i64, without the endings unless they are all
        that it has."""
        padded = np.zeros(-(-self.vocab_size // 64) * 2, dtype=np.uint32)
        count = min(len(words), len(padded))
        padded[:count] = words.view(np.uint32)[:count]
        last, bit = divmod(self.vocab_size, 32)
        if last < len(padded):
            padded[last] &= np.uint32(2**bit - 1)
            padded[last + 1 :] = 0
        longer = padded.copy()
        for token_id in endings:
            longer[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
        return (longer if longer.any() else padded).view(np.int64)
