"""A sequence: the token list one attempt advances, and where its KV lies.

The spec holds what the attempt was told; `Sequence` holds what changes. Everything that follows
from those facts is a property.
"""

from array import array
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

from shared.engine.sampling.logit_bias import bias_for
from shared.engine.sampling.token_counts import counts_for
from shared.engine.scheduling.prompt_order import PromptTurn
from shared.grammar.matcher import Matcher
from shared.kv.block_hash import chain_hashes
from shared.kv.layout import num_blocks_for
from shared.protocol import DEFAULT_PRIORITY, Attempt, FinishReason, TokenRun, Work

if TYPE_CHECKING:  # io processes know sequences and do without torch
    from shared.engine.sampling.sampled_tokens import SampledToken

Mode = Literal["full", "prefill", "decode"]
MAX_PREEMPTIONS = 3
"""of one sequence"""


@dataclass(frozen=True)
class SequenceSpec:
    """One attempt as the engine is told of it."""

    work: Work
    block_hashes: tuple[bytes, ...]
    """chain hashes of the full blocks of the work's tokens"""
    mode: Mode
    """full: prefill and decode here; prefill: hold the KV after token 1; decode: KV arrives"""
    reason: str = ""
    """why a decode worker computes this prompt itself, as `shared.protocol.Assign` has it"""

    @classmethod
    def of(cls, work: Work, block_size: int, mode: Mode, reason: str = "") -> "SequenceSpec":
        """With the names of the blocks, which are computed here, from the root and the tokens: a
        gateway cannot store one prompt's KV under the name of another's. It costs 1 us a
        block."""
        hashes = tuple(chain_hashes(work.hash_root, work.token_ids, block_size))
        return cls(work, hashes, mode, reason)


class SequenceState(Enum):
    """Life of a sequence, which is also the state of its blocks."""

    COMPILING = "compiling"
    """holds no block; queued once its grammar is ready"""
    WAITING = "waiting"
    """holds no block; queued for them"""
    WRITING = "writing"
    """its prompt is being computed"""
    HELD = "held"
    """prefill done, token 1 sampled; blocks wait for their reader until release"""
    RESERVED = "reserved"
    """decode: all prompt blocks taken, a transfer may be writing them; its abort waits for the
    transfer's end first, so until then this is also the quarantine (R7, R18). On a GPU also
    while the verified KV is copied there"""
    VERIFIED = "verified"
    """decode: the KV arrived whole; no step was scheduled since"""
    DECODE = "decode"
    """one token per step"""
    FINISHED = "finished"
    """holds no block; gone"""


class Sequence:
    """The mutable half of an attempt."""

    __slots__ = (
        "arrival",
        "bias",
        "block_hashes",
        "block_table",
        "counts",
        "drawn_version",
        "grammar",
        "num_awaited_tokens",
        "num_cached_tokens",
        "num_committed_blocks",
        "num_computed_tokens",
        "num_drawn",
        "num_in_flight_tokens",
        "num_preemptions",
        "num_published_blocks",
        "num_scored_tokens",
        "repeat",
        "spec",
        "state",
        "token_ids",
        "turn",
        "twin_blocks",
        "unbooked",
        "unverified",
        "whole",
        "work",
    )

    def __init__(self, spec: SequenceSpec, arrival: int) -> None:
        self.spec = spec
        self.work = work = spec.work
        self.arrival = arrival
        """order of arrival in this engine; the head of the queue has the earliest"""
        self.turn = PromptTurn()
        """in the order in which prompts of one priority are computed"""
        self.state = SequenceState.WAITING
        self.token_ids = list(work.token_ids)
        """grows by `append` only"""
        self.bias = bias_for(work.sampling)
        self.counts = counts_for(work.sampling, work.token_ids, work.num_prompt_tokens)
        """of token_ids, where the sampling has a penalty"""
        self.grammar: Matcher | None = None
        """where the output is in the sampling's grammar; there before the sequence is sampled"""
        self.block_hashes = list(spec.block_hashes)
        self.block_table: array[int] = array("i")
        self.twin_blocks: dict[int, int] = {}
        """by index in the table: another block in the prefix cache with the same content"""
        self.num_computed_tokens = 0
        """leading tokens whose K and V are in the pool"""
        self.num_in_flight_tokens = 0
        """tokens after those that steps in flight compute"""
        self.num_awaited_tokens = 0
        """tokens that steps in flight sample: the sequence has them, nobody here knows them yet"""
        self.num_cached_tokens = 0
        """of those, how many the prefix cache gave at the latest admission"""
        self.num_committed_blocks = 0
        """leading blocks that carry their hash in the pool"""
        self.num_published_blocks = 0
        """leading blocks already reported as pieces (mode prefill)"""
        self.num_scored_tokens = 1
        """leading tokens of the prompt whose log-probabilities were told, where they are wanted;
        nothing is before the first one, so it has none. A preemption leaves them told"""
        self.num_drawn = 0
        """blocks that its admission takes, while it is queued, as of `drawn_version` of the pool"""
        self.drawn_version = -1
        self.num_preemptions = 0
        self.whole = False
        """holds every block it can ever need, and does not grow"""
        self.unverified = False
        """decode: goes on from token 1 ahead of the verdict on its KV, by one step at most"""
        self.unbooked: SampledToken | None = None
        """what that step sampled, if it ended before the verdict"""
        self.repeat: TokenRun | None = None
        """token 1 as prefill sampled it; the first frame of decode says it again"""

    def take_unbooked(self) -> "SampledToken":
        """There must be one."""
        token, self.unbooked = self.unbooked, None
        assert token is not None
        return token

    def append(self, token_id: int) -> None:
        """The output has one more token, sampled here or by the worker before.

        GrammarError if its grammar does not allow it."""
        self.token_ids.append(token_id)
        if self.grammar is not None:
            self.grammar.accept(token_id)
        if self.counts is not None:
            self.counts.append(token_id)

    @property
    def awaits_kv(self) -> bool:
        """Or the verdict on it."""
        waits = self.state is SequenceState.RESERVED or self.unverified
        return waits and self.repeat is None

    @property
    def attempt(self) -> Attempt:
        return self.work.attempt

    @property
    def is_bulk(self) -> bool:
        """It goes after whatever has the default priority."""
        return self.work.priority > DEFAULT_PRIORITY

    @property
    def num_output_tokens(self) -> int:
        """Tokens beyond the client's prompt, those of earlier attempts included."""
        return len(self.token_ids) - self.work.num_prompt_tokens

    @property
    def num_scheduled_tokens(self) -> int:
        """Leading tokens that are computed or will be by a step in flight."""
        return self.num_computed_tokens + self.num_in_flight_tokens

    @property
    def num_tokens_ahead(self) -> int:
        """Its length once every step in flight is done."""
        return len(self.token_ids) + self.num_awaited_tokens

    @property
    def scores_prompt(self) -> bool:
        """Log-probabilities of its prompt are wanted from here, and not all of them are told."""
        wanted = self.work.prompt_logprobs >= 0 and self.spec.mode != "decode"
        return wanted and self.num_scored_tokens < self.work.num_prompt_tokens

    @property
    def pinned(self) -> bool:
        """It is not preempted any more: it was often enough, and has or gets all its blocks."""
        return self.num_preemptions >= MAX_PREEMPTIONS

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def _grammar_ended(self) -> bool:
        """The output is complete and nothing can follow it."""
        return self.grammar is not None and self.grammar.is_stopped

    def stops_at(self, token_id: int) -> bool:
        """Nothing follows this token."""
        sampling = self.work.sampling
        is_eos = token_id in sampling.eos_token_ids and not sampling.ignore_eos
        return is_eos or token_id in sampling.stop_token_ids

    def ends_at(self, length: int, max_model_len: int) -> bool:
        """Whatever its token is that makes it so long, it is the last one."""
        full = length - self.work.num_prompt_tokens >= self.work.sampling.max_tokens
        return full or length >= max_model_len

    def ends_in_flight(self, max_model_len: int) -> bool:
        """Whatever token it awaits, that one is its last."""
        awaits = self.num_awaited_tokens > 0
        return awaits and self.ends_at(self.num_tokens_ahead, max_model_len)

    def told(self, run: TokenRun) -> TokenRun:
        """What is reported of a run: the first of a handed-over sequence begins with token 1 once
        more."""
        first, self.repeat = self.repeat, None
        if first is None:
            return run
        return run._replace(
            index=first.index,
            token_ids=first.token_ids + run.token_ids,
            logprobs=first.logprobs + run.logprobs,
        )

    def finish_reason(self, max_model_len: int) -> FinishReason | None:
        """Why the last token ends the sequence, or None if it goes on."""
        if self._grammar_ended or self.stops_at(self.token_ids[-1]):
            return "stop"
        return "length" if self.ends_at(len(self.token_ids), max_model_len) else None


def max_kv_tokens(spec: SequenceSpec, max_model_len: int) -> int:
    """Most positions whose K and V the sequence can need here.

    The last token of a sequence is never fed back, and a prefill stops at token 1.
    """
    work = spec.work
    if spec.mode == "prefill":
        return len(work.token_ids)
    longest = min(work.num_prompt_tokens + work.sampling.max_tokens, max_model_len)
    return max(longest - 1, len(work.token_ids))


def rank_of(sequence: Sequence) -> tuple[int, int]:
    """The order in which sequences get blocks and places, and keep them."""
    return sequence.work.priority, sequence.arrival


def max_blocks(spec: SequenceSpec, max_model_len: int, block_size: int) -> int:
    """Most blocks the sequence can need here."""
    return num_blocks_for(max_kv_tokens(spec, max_model_len), block_size)
