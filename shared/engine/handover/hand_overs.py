"""What prefill's engine tells of KV that is handed over, and when others may touch a block.

    prefill   announce() before a step, what it completes -> marks say when
              show_first_tokens() after it, to readers that have the rest
    decode    marks.reserve() -> others fill the blocks -> adopt

Others read the pool, and fill reserved blocks, while steps run.
"""

from collections.abc import Sequence as Run

from shared.engine.handover.marks import Marks
from shared.engine.handover.output import StepOutput
from shared.engine.handover.pieces import next_pieces
from shared.engine.scheduling.batch import ScheduledSequence
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.sequence import Sequence
from shared.engine.scheduling.step_marks import StepMarks
from shared.kv.memory import KVMemory, Piece, first_token_word
from shared.protocol import Attempt


def announce(
    pool: BlockPool,
    marks: Marks,
    items: Run[ScheduledSequence],
    max_model_len: int,
    output: StepOutput,
) -> StepMarks | None:
    """Report the blocks that a step is about to complete, for readers that watch its marks: the
    caller makes these while it starts the step. None: nobody needs any."""
    computed: list[tuple[Attempt, Piece]] = []
    for sequence, start, num_tokens, samples, _ in items:
        length = len(sequence.token_ids) + 1
        if sequence.spec.mode != "prefill" or sequence.ends_at(length, max_model_len):
            continue
        cached, new = next_pieces(pool, sequence, start + num_tokens, last=samples)
        if cached is not None:
            output.pieces.append((sequence.attempt, cached, None))
        if new is not None:
            computed.append((sequence.attempt, new))
    if not computed:
        return None
    step_marks = marks.begin_step()
    output.pieces.extend((attempt, piece, step_marks.number) for attempt, piece in computed)
    return step_marks


def show_first_tokens(
    pool: BlockPool, memory: KVMemory, sampled: Run[tuple[Sequence, int]]
) -> None:
    """Write token 1 of each prompt that a step has completed where readers on this host look for
    it, before anything else is made of the step. Not where it ends the answer. `sampled`: the token
    of each sequence."""
    for sequence, token_id in sampled:
        # An attempt that was aborted while the step ran has no blocks.
        is_held = sequence.spec.mode == "prefill" and sequence.block_table
        if is_held and not sequence.stops_at(token_id):
            block = sequence.block_table[-1]
            memory.first_tokens[block] = first_token_word(pool.generations[block], token_id)
