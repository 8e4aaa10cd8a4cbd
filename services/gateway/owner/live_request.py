"""A request in memory: its state machine, its output, its assignment, its timing."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from services.gateway.owner.generation import GenerateRequest, Generation
from services.gateway.owner.machine.request_machine import RequestMachine
from services.gateway.owner.placement.assignment import Assignment
from services.gateway.owner.prompt_scores import PromptScores
from services.gateway.owner.records.receipt import Receipt
from services.gateway.owner.timing import Timing
from shared.kv.block_hash import block_hash
from shared.kv.layout import num_blocks_for
from shared.protocol import Attempt, Work
from shared.queue.backlog import is_early
from shared.settings.groups import KVPressure


class LiveRequest:
    """Everything the gateway keeps of a request it accepted and has not ended."""

    def __init__(
        self,
        request: GenerateRequest,
        machine: RequestMachine,
        generation: Generation,
        accepted: tuple[float, int],
        hashes: tuple[bytes, Sequence[bytes]],
        block_size: int,
        *,
        returned: bool = False,
    ) -> None:
        """`accepted`: monotonic seconds and wall-clock ns. `hashes`: root and the prompt's."""
        accepted_s, accepted_ns = accepted
        self.request = request
        self.machine = machine
        self.generation = generation
        self.ended = asyncio.Event()
        self.returned = returned
        """its client was refused before and told to come now"""
        self.timing = Timing(accepted_s, request.timeout_s, request.limit_s)
        self.assignment = Assignment(request.prefer_incarnation)
        hash_root, block_hashes = hashes
        self.work = Work(
            attempt=Attempt(request.rid, 0),
            token_ids=request.prompt_ids,
            num_prompt_tokens=len(request.prompt_ids),
            hash_root=hash_root,
            sampling=request.sampling,
            traceparent=request.traceparent or "",
            priority=request.priority,
            prompt_logprobs=request.prompt_logprobs,
        )
        """of this epoch"""
        self.scores: PromptScores | None = None
        """where log-probabilities of the prompt are wanted"""
        if request.prompt_logprobs >= 0:
            self.scores = PromptScores(len(request.prompt_ids), request.prompt_logprobs)
            generation.prompt_logprobs = self.scores.pieces
        self.block_hashes = tuple(block_hashes) if self.scores is None else ()
        """what a worker may have in its cache and read from there"""
        self.num_earlier_tokens = 0
        """output tokens taken before this epoch"""
        self.num_cached_tokens = 0
        """of this epoch's sequence, as the computing worker said at START"""
        self.line_charge = self.backlog_charge = 0  # of its tenant's, where it waited
        self.block_size = block_size
        self._admitted = self._placed = self._waits_for_all = False
        self.receipt = Receipt(
            request.rid,
            request.endpoint,
            len(request.prompt_ids),
            request.received_ns,
            accepted_ns,
            request.tenant,
            group=request.group.rid if request.group else "",
            choice=request.choice,
            prompt=request.prompt,
            priority=request.priority,
        )

    @property
    def rid(self) -> str:
        return self.request.rid

    @property
    def is_early(self) -> bool:
        """Later ones take no room of a worker from it."""
        return is_early(self.work.priority)

    @property
    def num_tokens(self) -> int:
        """Its prompt and its answer so far."""
        return self.work.num_prompt_tokens + len(self.machine.token_ids)

    @property
    def num_blocks(self) -> int:
        """That those fill, and the next tokens; or all that it waits for where it goes on."""
        return self.max_blocks if self._waits_for_all else self.num_tokens // self.block_size + 2

    @property
    def num_decode_tokens(self) -> int:
        """A decode worker has blocks for them before it goes on with this epoch."""
        return self._max_tokens if self._waits_for_all else len(self.work.token_ids)

    @property
    def max_blocks(self) -> int:
        """That it can ever need where it is decoded."""
        return num_blocks_for(self._max_tokens, self.block_size)

    @property
    def _max_tokens(self) -> int:
        """The last one is never fed back."""
        most = self.work.num_prompt_tokens + self.work.sampling.max_tokens - 1
        return max(most, len(self.work.token_ids))

    def begin_epoch(self, cause: str, prefer_incarnation: str | None) -> None:
        """The next attempt continues after the tokens taken so far."""
        self.assignment.renew(cause, prefer_incarnation)
        if not cause.startswith("refused_"):
            self._note_taken()
        attempt = Attempt(self.rid, self.machine.epoch)
        token_ids = self.request.prompt_ids + tuple(self.machine.token_ids)
        self.work = replace(self.work, attempt=attempt, token_ids=token_ids)
        if self.scores is not None:
            self.scores.begin_again()
            self.work = replace(self.work, prompt_logprobs=self.scores.wanted)
        self.note_suspicion()
        self.num_earlier_tokens = len(self.machine.token_ids)
        hashes, size = list(self.block_hashes), self.block_size
        parent = hashes[-1] if hashes else self.work.hash_root
        for end in range((len(hashes) + 1) * size, len(token_ids) + 1, size):
            parent = block_hash(parent, token_ids[end - size : end])
            hashes.append(parent)
        self.block_hashes = tuple(hashes) if self.work.prompt_logprobs < 0 else ()

    def note_suspicion(self) -> None:
        """An attempt that has not begun is computed alone where engines have died of it."""
        if self.machine.waits:
            self.work = replace(self.work, alone=self.machine.strikes.crashes.suspected)

    def note_start(self, now_s: float, num_cached_tokens: int) -> None:
        """The first chunk of this epoch is scheduled."""
        self.timing.note_progress(now_s)
        self.num_cached_tokens = num_cached_tokens
        self._note_taken()

    def note_admitted(self) -> None:
        """Redis has recorded it."""
        self._admitted = True
        if self._placed:
            self.generation.accept()

    def meet_pressure(self, policy: KVPressure) -> None:
        """What lack of KV blocks does to it: it waits for all that it can ever need, or is refused
        until a worker has taken it, or it follows a choice that was taken."""
        self._waits_for_all = policy != "preempt"
        if policy == "reject" and not self.request.follows:
            self.work = replace(self.work, accepted=False)

    def note_placed(self) -> None:
        """It is on a worker or in the backlog: lack of room refuses it no more, unless that of KV
        blocks may."""
        self._placed = self.work.accepted
        if self._placed and self._admitted:
            self.generation.accept()

    def _note_taken(self) -> None:
        if not self.work.accepted:
            self.work = replace(self.work, accepted=True)
            self.note_placed()
