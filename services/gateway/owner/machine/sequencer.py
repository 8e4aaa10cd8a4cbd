"""Puts one request's token frames in order (R3).

Frames of the current attempt come from two workers over two links, so the decode worker's may
overtake prefill's. A frame behind what was taken repeats it; a frame ahead waits for the gap.
"""

from shared.protocol import FinishReason, TokenLogprobs, TokenRun

MAX_AHEAD = 64
"""tokens a frame may be ahead of the next one wanted, and frames kept"""


class Sequencer:
    """Output tokens in order; `token_ids` are all that were taken, from index 0."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._ahead: dict[int, TokenRun] = {}

    @property
    def next_index(self) -> int:
        return len(self.token_ids)

    def push(self, run: TokenRun) -> list[TokenRun]:
        """Step 8: the runs that `run` makes ready, in order and without what was taken before."""
        if run.index == len(self.token_ids) and run.token_ids and not self._ahead:
            self.token_ids += run.token_ids
            return [run]
        if run.index > self.next_index:
            self._keep(run)
            return []
        ready = self._take(run)
        while ready and self._ahead:
            follower = self._pop_follower()
            if follower is None:
                break
            ready += self._take(follower)
        return ready

    def contradicts(self, run: TokenRun) -> bool:
        """Whether `run` repeats a taken position with another token."""
        if run.index >= len(self.token_ids):
            return False
        taken = self.token_ids[run.index : run.index + len(run.token_ids)]
        return tuple(taken) != run.token_ids[: len(taken)]

    def forget_ahead(self) -> None:
        """A new attempt begins: what waits for a gap belongs to the old one."""
        self._ahead.clear()

    def _keep(self, run: TokenRun) -> None:
        fits = run.index + len(run.token_ids) - self.next_index <= MAX_AHEAD
        if fits and len(self._ahead) < MAX_AHEAD:
            self._ahead[run.index] = run

    def _take(self, run: TokenRun) -> list[TokenRun]:
        rest = _rest_from(run, self.next_index)
        if rest is None:
            return []
        self.token_ids += rest.token_ids
        return [rest]

    def _pop_follower(self) -> TokenRun | None:
        for index in sorted(self._ahead):
            if index > self.next_index:
                return None
            run = self._ahead.pop(index)
            if index + len(run.token_ids) > self.next_index:
                return run
        return None


def _rest_from(run: TokenRun, index: int) -> TokenRun | None:
    """The part of `run` at `index` and after; None when there is none."""
    skip = index - run.index
    if skip >= len(run.token_ids):
        return None
    if skip <= 0:
        return run
    return TokenRun(
        run.rid, run.epoch, index, run.token_ids[skip:], run.logprobs[skip:], run.finish_reason
    )


def cut_run(run: TokenRun, num_tokens: int, reason: FinishReason) -> TokenRun:
    """The first `num_tokens` tokens of `run`, which end the request."""
    logprobs: tuple[TokenLogprobs, ...] = run.logprobs[:num_tokens]
    return TokenRun(run.rid, run.epoch, run.index, run.token_ids[:num_tokens], logprobs, reason)
