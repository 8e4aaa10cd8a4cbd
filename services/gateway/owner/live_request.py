"""A request in memory: its state machine, its output, its place, its times."""

import asyncio
import secrets
from collections.abc import Sequence

from services.gateway.owner.avoidance import Key
from services.gateway.owner.effects import Failure, SendAssign, SendReceive
from services.gateway.owner.generation import GenerateRequest, Generation
from services.gateway.owner.ownership import Ownership
from services.gateway.owner.receipts import AttemptNote, Receipt
from services.gateway.owner.router import Route
from services.gateway.owner.time_limits import no_token, time_is_up
from shared.block_hash import block_hash
from shared.protocol import Assign, Receive
from shared.state.records import AdmittedRequest

PATIENCE_S = 5.0
_PATIENCE_FACTOR = 20
_GAP_WEIGHT = 0.2
_TICKET_BYTES = 16


class LiveRequest:
    """Everything the gateway keeps of a request it accepted and has not ended."""

    def __init__(
        self,
        request: GenerateRequest,
        record: AdmittedRequest,
        machine: Ownership,
        generation: Generation,
        accepted: tuple[float, int],
        hashes: tuple[bytes, Sequence[bytes]],
    ) -> None:
        """`accepted`: monotonic seconds and wall-clock ns. `hashes`: root and the prompt's."""
        accepted_s, accepted_ns = accepted
        self.request = request
        self.record = record
        self.machine = machine
        self.generation = generation
        self.ended = asyncio.Event()
        self.deadline_s = accepted_s + request.timeout_s
        self.hash_root, self.block_hashes = hashes[0], tuple(hashes[1])
        self.token_ids = request.prompt_ids
        """what this epoch starts from: the prompt, then the tokens taken before it"""
        self.num_earlier_tokens = 0
        """output tokens taken before this epoch"""
        self.ticket = ""
        self.route: Route | None = None
        self.prefer_inc = request.prefer_inc
        self.returned = False
        """its client was refused before and told to come now"""
        self.failed: frozenset[Key] = frozenset()
        """workers and pairs of workers that failed it"""
        self.failed_again: frozenset[Key] = frozenset()
        self.cause = "first"
        """why the epoch exists: first, or what ended the one before"""
        self.progress_s = accepted_s
        self.last_token_s = accepted_s
        self.started_s = 0.0
        self.num_cached_tokens = 0
        """of this epoch's sequence, as the computing worker said at START"""
        self._gap_s = 0.0
        self._admitted = False
        self._placed = False
        self.receipt = Receipt(
            request.rid,
            request.endpoint,
            len(request.prompt_ids),
            request.received_ns,
            accepted_ns,
            group=request.group,
            choice=request.choice,
            prompt=request.prompt,
        )

    @property
    def rid(self) -> str:
        return self.request.rid

    def overdue(self, now_s: float, token_timeout_s: float) -> Failure | None:
        """What it ends with if its time is up, or if no token came for too long: whether it
        waited in the line, on a worker, or between two attempts."""
        if now_s >= self.deadline_s:
            return time_is_up(self.request.limit_s)
        if now_s - self.last_token_s >= token_timeout_s:
            return no_token(token_timeout_s)
        return None

    def note_pause(self, seconds_s: float) -> None:
        """The gateway itself stood still: nobody was late meanwhile."""
        self.progress_s += seconds_s
        self.last_token_s += seconds_s

    def begin_epoch(self, block_size: int) -> None:
        """A retry continues after the tokens taken so far."""
        self.token_ids = self.request.prompt_ids + tuple(self.machine.token_ids)
        self.num_earlier_tokens = len(self.machine.token_ids)
        hashes = list(self.block_hashes)
        parent = hashes[-1] if hashes else self.hash_root
        for end in range((len(hashes) + 1) * block_size, len(self.token_ids) + 1, block_size):
            parent = block_hash(parent, self.token_ids[end - block_size : end])
            hashes.append(parent)
        self.block_hashes = tuple(hashes)
        self.route = None

    def note_admitted(self) -> None:
        """Redis has recorded it."""
        self._admitted = True
        if self._placed:
            self.generation.accept()

    def note_placed(self) -> None:
        """It is on a worker or in the backlog: lack of room refuses it no more."""
        self._placed = True
        if self._admitted:
            self.generation.accept()

    def note_route(self, route: Route, worker_id: str, now_ns: int) -> None:
        """The epoch goes to this worker."""
        self.note_placed()
        self.route = route
        self.ticket = secrets.token_hex(_TICKET_BYTES)
        note = AttemptNote(self.machine.epoch, route.mode, route.reason, route.text)
        earlier = self.receipt.attempts[-1:]
        note.queued_ns = earlier[0].ended_ns if earlier else self.receipt.accepted_ns
        note.assigned_ns = now_ns
        note.prefill = worker_id
        note.decode = worker_id if route.mode == "local" else ""
        self.receipt.attempts.append(note)

    def note_start(self, now_s: float, num_cached_tokens: int) -> None:
        self.started_s = self.progress_s = now_s
        self.num_cached_tokens = num_cached_tokens

    def note_tokens(self, now_s: float) -> None:
        gap_s = now_s - self.progress_s
        self._gap_s += _GAP_WEIGHT * (gap_s - self._gap_s)
        self.progress_s = self.last_token_s = now_s

    def patience_s(self) -> float:
        """How long without progress is too long: 20 times what the next event should take."""
        estimate_s = self.route.estimate_s if self.route else 0.0
        return max(PATIENCE_S, _PATIENCE_FACTOR * max(estimate_s, self._gap_s))

    def assign_message(self, effect: SendAssign) -> Assign:
        request = self.request
        return Assign(
            rid=request.rid,
            epoch=effect.epoch,
            inc=effect.inc,
            token_ids=self.token_ids,
            num_prompt_tokens=len(request.prompt_ids),
            hash_root=self.hash_root,
            sampling=request.sampling,
            mode=effect.mode,
            reason=effect.reason,
            ticket=self.ticket,
            traceparent=request.traceparent or "",
        )

    def receive_message(self, effect: SendReceive, source: str) -> Receive:
        """`source`: transfer address of the prefill worker."""
        request = self.request
        return Receive(
            rid=request.rid,
            epoch=effect.epoch,
            inc=effect.d_inc,
            p_inc=effect.p_inc,
            source=source,
            ticket=self.ticket,
            token_ids=self.token_ids,
            num_prompt_tokens=len(request.prompt_ids),
            hash_root=self.hash_root,
            sampling=request.sampling,
            traceparent=request.traceparent or "",
        )
