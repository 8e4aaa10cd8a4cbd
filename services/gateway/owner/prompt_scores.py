"""What has come of the log-probabilities of a prompt, and the tokens that wait for the rest."""

from services.gateway.owner.links.worker_link import WorkerLink
from shared.errors import ProtocolError
from shared.message_parts.prompt_logprobs import PromptLogprobs, check_piece
from shared.protocol import TokenRun


class PromptScores:
    """All of it is of one attempt: another begins with none, unless it was complete before."""

    def __init__(self, num_prompt_tokens: int, num_top: int) -> None:
        """`num_top`: alternatives of each token."""
        self.num_top = num_top
        self.pieces: list[PromptLogprobs] = []
        """in order; of all tokens but the first once they are complete"""
        self._num_prompt_tokens = num_prompt_tokens
        self._num_told = 1
        self._held: list[tuple[WorkerLink, TokenRun]] = []

    @property
    def complete(self) -> bool:
        return self._num_told == self._num_prompt_tokens

    @property
    def wanted(self) -> int:
        """Of the next attempt, as `Work.prompt_logprobs`: nothing is told twice."""
        return -1 if self.complete else self.num_top

    def add(self, piece: PromptLogprobs, vocab_size: int) -> None:
        """ProtocolError where it does not follow the piece before, or is none."""
        check_piece(piece, self.num_top, vocab_size)
        end = piece.first + piece.num_tokens
        if piece.first != self._num_told or end > self._num_prompt_tokens:
            raise ProtocolError("log-probabilities of a prompt out of their order")
        self.pieces.append(piece)
        self._num_told = end

    def hold(self, worker: WorkerLink, run: TokenRun) -> None:
        """These tokens came too early."""
        self._held.append((worker, run))

    def take_held(self) -> list[tuple[WorkerLink, TokenRun]]:
        held, self._held = self._held, []
        return held

    def begin_again(self) -> None:
        """Another attempt begins."""
        self._held.clear()
        if not self.complete:
            self.pieces.clear()
            self._num_told = 1
