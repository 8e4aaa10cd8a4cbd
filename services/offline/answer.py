"""What comes of a prompt."""

from dataclasses import dataclass

from shared.protocol import FinishReason


@dataclass(frozen=True)
class TokenLogprob:
    """Of one token, of the unscaled distribution."""

    token_id: int
    text: str
    logprob: float
    top: tuple["TokenLogprob", ...] = ()
    """the most likely ones at its place, as many as were asked for"""


@dataclass(frozen=True)
class Choice:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None
    """the stop token's id or the stop string that ended it; None for EOS"""
    logprobs: tuple[TokenLogprob, ...] | None
    """of the tokens that the text is made of; None where nobody asked"""


@dataclass(frozen=True)
class Answer:
    """A prompt's choices."""

    prompt: str | None
    """its text, of a chat as the template wrote it; None where token ids were given"""
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    num_cached_tokens: int
    """of the prompt, which the first choice found in the prefix cache"""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """of the prompt's tokens, None for its first; None where nobody asked"""

    @property
    def text(self) -> str:
        """The first choice's, as the two below."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Of all choices."""
        return sum(len(choice.token_ids) for choice in self.choices)
