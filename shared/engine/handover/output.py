"""What one engine step decided and computed, for the worker that owns the engine."""

from dataclasses import dataclass, field

from shared.kv.memory import Piece
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.protocol import Attempt, TokenRun


@dataclass(slots=True)
class StepOutput:
    """Facts of one step, in the order they happened within each list.

    An attempt that appears in `ended`, `finished`, `handed_back`, `failed` or `refused` is
    forgotten by the engine: its blocks are free or prefix-cached and no later step names it.
    """

    alone: Attempt | None = None
    """the only one that the step computes, since it is to be computed alone"""
    started: list[tuple[Attempt, int]] = field(default_factory=list)
    """first chunk scheduled, with the tokens the prefix cache gave; once per attempt"""
    chunks: list[tuple[Attempt, int]] = field(default_factory=list)
    """prompt tokens computed in this step"""
    scored: list[tuple[Attempt, PromptLogprobs]] = field(default_factory=list)
    """of tokens of prompts whose log-probabilities are wanted, each once and in order"""
    tokens: list[TokenRun] = field(default_factory=list)
    """sampled tokens; the last run of a sequence carries its finish_reason"""
    pieces: list[tuple[Attempt, Piece, int | None]] = field(default_factory=list)
    """mode prefill: blocks that the step of that number completes, or that were complete before;
    an attempt's pieces never overlap"""
    sealed: list[tuple[Attempt, TokenRun]] = field(default_factory=list)
    """mode prefill: all pieces are known, token 1 is sampled, blocks stay until release()"""
    ended: list[Attempt] = field(default_factory=list)
    """mode prefill: token 1 ended the request; there is nothing to hand over"""
    reserved: list[tuple[Attempt, tuple[int, ...], int]] = field(default_factory=list)
    """mode decode: block ids of the whole prompt, and how many leading ones need no pull"""
    finished: list[Attempt] = field(default_factory=list)
    """modes full and decode: the run in `tokens` was the last"""
    handed_back: list[Attempt] = field(default_factory=list)
    """mode decode: given up for lack of blocks; another attempt may resume it"""
    failed: list[tuple[Attempt, str]] = field(default_factory=list)
    """cannot be served here, and why: its grammar could not be followed; another attempt may"""
    refused: list[tuple[Attempt, str]] = field(default_factory=list)
    """cannot be served anywhere, and why: nothing can match its grammar"""
    stored: list[tuple[bytes, int]] = field(default_factory=list)
    """block hashes that entered the prefix cache; depth counts blocks from the root, from 1"""
    removed: list[bytes] = field(default_factory=list)
    """block hashes that left it; disjoint from `stored`"""
