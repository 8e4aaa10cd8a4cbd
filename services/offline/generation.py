"""A list of prompts on its way through the engine: queued, stepped, put in order."""

from collections.abc import Sequence

from services.offline.answer import Answer
from services.offline.live_choice import LiveChoice
from services.offline.progress import Progress
from services.offline.prompt import Prompt
from services.offline.step_loop import StepLoop
from shared.errors import AttemptError, BatonError, RequestError


class Generation:
    """Runs once. However it ends, the engine holds nothing of it afterwards."""

    def __init__(self, loop: StepLoop, prompts: Sequence[Prompt], progress: Progress) -> None:
        self._loop = loop
        self._prompts = prompts
        self._progress = progress
        self._choices: list[list[LiveChoice]] = [[] for _ in prompts]
        """of each prompt, as far as they were begun"""
        self._live: dict[LiveChoice, int] = {}
        """those that have not ended, and the prompt of each"""
        self._num_done = 0
        """prompts all of whose choices have ended"""
        self._num_tokens = 0
        """of choices that have ended"""

    def run(self) -> list[Answer]:
        """The answers, in the order of the prompts. The first that fails fails all."""
        try:
            for at, prompt in enumerate(self._prompts):
                for index in range(len(prompt.samplings)):
                    while self._live and not self._loop.has_room:
                        self._step()
                    self._begin(at, index)
            while self._live:
                self._step()
        finally:
            self._progress.end(self._num_done, self._num_tokens + self._num_running_tokens)
            self._loop.drop(self._live)
        return [answer_of(choices) for choices in self._choices]

    def _begin(self, at: int, index: int) -> None:
        live = self._loop.choice(self._prompts[at], index)
        self._choices[at].append(live)
        self._live[live] = at
        self._loop.begin(live)

    def _step(self) -> None:
        """One step, and what it ended."""
        self._loop.step(self._live)
        for live in [live for live in self._live if live.ended]:
            at = self._live.pop(live)
            if live.error is not None:
                raise _of_prompt(live.error, at)
            self._num_tokens += live.num_tokens
            choices = self._choices[at]
            whole = len(choices) == len(self._prompts[at].samplings)
            self._num_done += whole and not any(each in self._live for each in choices)
        if self._progress.due:
            self._progress.show(self._num_done, self._num_tokens + self._num_running_tokens)

    @property
    def _num_running_tokens(self) -> int:
        return sum(live.num_tokens for live in self._live)


def answer_of(choices: Sequence[LiveChoice]) -> Answer:
    """All choices of one prompt, which have ended."""
    first = choices[0]
    return Answer(
        prompt=first.prompt.text,
        prompt_token_ids=first.prompt.token_ids,
        choices=tuple(live.choice for live in choices),
        num_cached_tokens=first.num_cached_tokens,
        prompt_logprobs=first.prompt_logprobs,
    )


def _of_prompt(error: Exception, at: int) -> Exception:
    """The same, with the number of the prompt."""
    text = f"prompts[{at}]: {error}"
    if isinstance(error, RequestError):
        return RequestError(text, code=error.code, param=error.param)
    if isinstance(error, AttemptError):
        return AttemptError(text, code=error.code)
    return BatonError(text)
