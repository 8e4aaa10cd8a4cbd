"""An answer's text behind that of its prompt."""

from services.gateway.owner.generation import Delta
from shared.protocol import Sampling
from shared.text.answer_text import AnswerText, TokenEntry, TokenPiece
from shared.text.tokenizer import TextTokenizer


class PromptPiece(Delta):
    """A part of a prompt on its way to a stream, before the first tokens of the answer."""

    text: str
    entries: list[TokenEntry]

    @classmethod
    def of(cls, text: str, entries: list[TokenEntry]) -> "PromptPiece":
        piece = cls((), ())
        piece.text, piece.entries = text, entries
        return piece


class EchoedText(AnswerText):
    """Shows the prompt first: with the first tokens of the answer, unless it was pushed before, in
    pieces with its log-probabilities."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        sampling: Sampling,
        stop: tuple[str, ...],
        prompt: str,
        *,
        answers: bool,
        with_ids: bool,
    ) -> None:
        """`answers`: False leaves the answer away."""
        super().__init__(tokenizer, sampling, stop, with_ids=with_ids)
        self._prompt = prompt
        self._answers = answers
        self._num_made_chars = len(prompt)

    def push(self, piece: TokenPiece) -> str:
        if isinstance(piece, PromptPiece):
            self._prompt = ""
            self._entries += piece.entries
            return self._count(piece.text)
        prompt, self._prompt = self._prompt, ""
        shown = piece if self._answers else Delta((), (), piece.finish_reason)
        return self._count(prompt) + super().push(shown)
