"""One answer as it comes."""

from collections.abc import Generator, Iterator
from typing import Self

from services.offline.answer import Answer
from services.offline.generation import answer_of
from services.offline.prompt import Prompt
from services.offline.step_loop import StepLoop
from shared.errors import BatonError


class AnswerStream:
    """Iterate once, for pieces of text. Whoever leaves early, by `close`, by the end of a `with` or
    by forgetting it, ends the computation."""

    def __init__(self, loop: StepLoop, prompt: Prompt) -> None:
        """The first choice's alone."""
        self._loop = loop
        self._live = loop.choice(prompt, 0)
        self._pieces = self._iterate()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._pieces.close()

    @property
    def answer(self) -> Answer:
        """The whole, once the last piece was read; BatonError before."""
        if not self._live.ended or self._live.error is not None:
            raise BatonError("the answer is not complete; read the stream to its end first")
        return answer_of([self._live])

    def _iterate(self) -> Generator[str]:
        live = self._live
        try:
            self._loop.begin(live)
            while not live.ended:
                self._loop.step((live,))
                if text := live.take_text():
                    yield text
            if text := live.take_text():  # where another call's steps ended it
                yield text
            if live.error is not None:
                raise live.error
        finally:
            self._loop.drop((live,))
