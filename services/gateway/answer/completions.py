"""OpenAI's chat completions and completions: an answer as chunks, or as one object."""

from typing import Any

from services.gateway.answer.answer import Answer
from services.gateway.answer.choice import (
    Receipt,
    StreamedChoice,
    StreamedParts,
    streamed_choice,
    whole_choice,
)
from services.gateway.answer.prompt_tokens import echoed_logprobs, prompt_list
from services.gateway.answer.shape import AnswerShape, answer_object
from services.gateway.answer.sse import COMMENT, DONE, ChunkWriter, error_event
from services.gateway.http.errors import error_body
from shared.errors import BatonError


class CompletionStream:
    """Chunks of different choices come as they come; a failure is the last event, without
    `[DONE]`."""

    def __init__(self, answer: Answer, shape: AnswerShape) -> None:
        self._answer = answer
        self._chunks = [
            ChunkWriter(
                shape,
                answer.identity,
                with_usage=answer.prepared.include_usage,
                index=index,
                prompt_ids=answer.prompt_ids(index),
            )
            for index in range(len(answer.texts))
        ]
        self.choices: list[StreamedChoice | StreamedParts] = [
            streamed_choice(text, chunks, with_logprobs=answer.with_logprobs)
            for text, chunks in zip(answer.texts, self._chunks, strict=True)
        ]

    def idle(self) -> bytes:
        return COMMENT

    def ending(self, index: int, shown: str, receipt: Receipt | None) -> bytes:
        """A receipt is in the last chunk."""
        answer, choice = self._answer, self.choices[index]
        so_far = answer.usage() if answer.prepared.continuous_usage else None
        if not answer.prepared.include_usage:
            return choice.last(shown, so_far, receipt) + DONE
        last = choice.last(shown, so_far)
        return last + self._chunks[0].usage(answer.usage(), receipt) + DONE

    def failure(self, error: BatonError) -> bytes:
        return error_event(error_body(error))


class CompletionBody:
    """All choices in one object."""

    def __init__(self, answer: Answer, shape: AnswerShape) -> None:
        self._answer = answer
        self._shape = shape
        self._choices = [
            whole_choice(text, shape, with_logprobs=answer.with_logprobs) for text in answer.texts
        ]

    def add(self, index: int, shown: str) -> None:
        self._choices[index].add(shown)

    def body(self) -> dict[str, Any]:
        answer = self._answer
        choices = [choice.body() for choice in self._choices]
        body = answer_object(self._shape, answer.identity, choices, answer.usage())
        self._show_prompts(body)
        self._score_prompts(body)
        return body

    def _show_prompts(self, body: dict[str, Any]) -> None:
        """Token ids of the prompt, where they were asked for: a chat has one, completions have
        them by choice."""
        answer = self._answer
        if not answer.prepared.return_token_ids:
            return
        if answer.prepared.endpoint == "chat":
            body["prompt_token_ids"] = answer.prompt_ids(0)
            return
        for index, choice in enumerate(body["choices"]):
            choice["prompt_token_ids"] = answer.prompt_ids(index)

    def _score_prompts(self, body: dict[str, Any]) -> None:
        """Log-probabilities of the prompt, where they were asked for: with those of the answer
        where a choice shows its prompt, and in a field of their own, which a chat has once."""
        answer, names, asked = self._answer, self._shape.names, self._answer.prepared
        for index, choice in enumerate(body["choices"]):
            if asked.shows_prompt and answer.with_logprobs:
                tokens, num_top = answer.prompt_tokens(index), asked.sampling.logprobs
                choice["logprobs"] = echoed_logprobs(tokens, names, num_top, choice["logprobs"])
            place = body if asked.endpoint == "chat" else choice
            if asked.prompt_logprobs >= 0 and "prompt_logprobs" not in place:
                tokens = answer.prompt_tokens(index)
                place["prompt_logprobs"] = prompt_list(tokens, names, asked.prompt_logprobs)
