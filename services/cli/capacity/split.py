"""How many workers should prefill for those that decode: by what a request takes of each at least.

Of floors, so that it is the better the longer prompts and answers are: `baton bench verdict`
measures, and the autoscaler follows what really comes.
"""

from dataclasses import dataclass

from services.cli.bench.engine.figures.floors import Floors
from services.cli.capacity.devices import RATES
from services.cli.capacity.estimate import Capacity, Question
from shared.engine.running.ceilings import Ceilings
from shared.kv.layout import num_blocks_for
from shared.model.model_size import ModelSize

MOST_WORKERS = 8
"""in a split: beyond, a worker more or less changes little"""


@dataclass(frozen=True)
class Split:
    """Of workers; seconds of one request's at least."""

    prefill_s: float
    decode_s: float
    """its share of the steps that it is in"""
    sequences: int
    """that decode together"""
    prefill: int
    decode: int

    @property
    def requests_per_s(self) -> float:
        """Of all these workers together, at most."""
        return min(self.prefill / self.prefill_s, self.decode / self.decode_s)


def split_of(question: Question, capacity: Capacity) -> Split | None:
    """None where no lengths were asked about, the device's rates are not known, or no such
    sequence fits."""
    rates = RATES.get(question.device.name)
    if rates is None or not (question.prompt and question.answer):
        return None
    each = num_blocks_for(question.prompt + question.answer, capacity.layout.block_size)
    sequences = min(capacity.max_num_seqs, capacity.num_blocks // each)
    if not sequences:
        return None
    size = ModelSize.of(question.checkpoint.config, question.dtype, question.compute.tp)
    floors = Floors(size, Ceilings(*rates))
    context = question.prompt + question.answer / 2
    step_s = floors.decode_step_s([context] * sequences)
    prefill_s = floors.prefill_s(question.prompt)
    return best_split(prefill_s, question.answer * step_s / sequences, sequences)


def best_split(prefill_s: float, decode_s: float, sequences: int) -> Split:
    """The one whose workers answer most for their number; the smaller of equals."""
    splits = [
        Split(prefill_s, decode_s, sequences, prefill, number - prefill)
        for number in range(2, MOST_WORKERS + 1)
        for prefill in range(1, number)
    ]
    return max(splits, key=lambda split: split.requests_per_s / (split.prefill + split.decode))
