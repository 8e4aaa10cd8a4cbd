"""Log-probabilities of prompts as workers tell them.

Whoever computes a prompt tells all of them before token 1, on one link. The decode worker's tokens
come on another and may be here first, so no token of a request that wants them is taken before
they are complete. If the prefill worker is lost until then, so is the attempt, and the next one
computes the prompt again.
"""

import logging
from collections.abc import Callable

from services.gateway.owner.links.worker_link import WorkerLink
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.requests import Requests
from shared.clock import Clock
from shared.errors import ProtocolError
from shared.protocol import Attempt, Cancel, Scored, TokenRun

logger = logging.getLogger(__name__)

OnRun = Callable[[WorkerLink, LiveRequest, TokenRun, float], object]
"""takes a run; with the time on the monotonic clock"""


class ScoredPrompts:
    """Of all live requests."""

    def __init__(self, requests: Requests, vocab_size: int, clock: Clock, on_run: OnRun) -> None:
        """`on_run`: for tokens that had to wait."""
        self._requests = requests
        self._vocab_size = vocab_size
        self._clock = clock
        self._on_run = on_run

    def receive(self, worker: WorkerLink, message: Scored) -> None:
        """A piece; one of another attempt, or that nobody asked for, changes nothing."""
        live = self._requests.get(message.attempt.rid)
        scores = live.scores if live is not None else None
        if live is None or scores is None or scores.complete:
            return
        if not _is_computed_by(live, worker, message.attempt.epoch):
            return
        try:
            scores.add(message.values, self._vocab_size)
        except ProtocolError as error:
            self._give_up(worker, live, "invalid_logprobs", str(error))
            return
        now_s = self._clock.monotonic_s()
        live.timing.note_progress(now_s)
        if scores.complete:
            for sender, run in scores.take_held():
                self._on_run(sender, live, run, now_s)

    def holds_back(self, worker: WorkerLink, live: LiveRequest, run: TokenRun) -> bool:
        """Whether these tokens wait, or are lost with their attempt: a worker that computed the
        prompt and did not say what was asked for is not to be believed that it was."""
        scores = live.scores
        if scores is None or scores.complete or live.machine.epoch != run.epoch:
            return False
        if _is_computed_by(live, worker, run.epoch):
            text = "token 1 without the log-probabilities of its prompt"
            self._give_up(worker, live, "no_prompt_logprobs", text)
        else:
            scores.hold(worker, run)
        return True

    def _give_up(self, worker: WorkerLink, live: LiveRequest, code: str, text: str) -> None:
        logger.error("%s: %s", worker.worker_id, text)
        epoch = live.machine.epoch
        worker.send(Cancel(Attempt(live.rid, epoch), text))
        self._requests.execute(live, live.machine.fail(epoch, worker.incarnation, code))


def _is_computed_by(live: LiveRequest, worker: WorkerLink, epoch: int) -> bool:
    machine = live.machine
    return machine.epoch == epoch and machine.prefill_incarnation == worker.incarnation
