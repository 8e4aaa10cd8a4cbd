"""What the text side makes of a request's body."""

from dataclasses import dataclass

from services.gateway.owner.generation import Endpoint
from services.gateway.parts.parser import PLAIN, AnswerForm
from shared.protocol import Sampling


@dataclass(frozen=True)
class PreparedPrompt:
    """One of a request's prompts."""

    token_ids: tuple[int, ...]
    block_hashes: tuple[bytes, ...]
    max_tokens: int
    text: str = ""
    """of which the tokens were made, or what they make, where the answer shows it"""


@dataclass(frozen=True)
class PreparedRequest:
    """One generation request as far as text goes: what to compute, how to show it."""

    endpoint: Endpoint
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stop: tuple[str, ...]
    sampling: Sampling
    """of the first prompt's first choice"""
    prompts: tuple[PreparedPrompt, ...]
    num_choices: int
    """of each prompt"""
    grammar_param: str = "response_format"
    """the field that the sampling's grammar comes from"""
    form: AnswerForm = PLAIN
    """what the answers' texts are split into"""
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    """logprobs name tokens by their ids"""
    ignored: tuple[str, ...] = ()
    """fields that changed nothing because nobody knows them"""
    clamped: str = ""
    """a limit that did not fit, as `max_tokens=1234`; empty if none"""
    echo: str = ""
    """JSON of the fields that the answer repeats, where its shape has them"""
    priority: int | None = None
    """None: the client does not say"""
    shows_prompt: bool = False
    """each choice begins with its prompt, and `logprobs` with those of the prompt"""
    answers: bool = True
    """False: only the prompt is wanted; the one token that is computed is thrown away"""
    prompt_logprobs: int = -1
    """the client's field of that name: -1 none; 0 the prompt's tokens; k also the k most likely"""

    @property
    def scored_top(self) -> int:
        """Alternatives of each token of a prompt that workers are to tell, -1: nothing."""
        echoed = self.sampling.logprobs if self.shows_prompt else -1
        return max(self.prompt_logprobs, echoed)


@dataclass(frozen=True)
class TokenList:
    """Answer of /tokenize and /v1/messages/count_tokens."""

    token_ids: tuple[int, ...]
    names: tuple[str, ...] | None = None
    """of the tokens in the vocabulary, where they were asked for"""
    ignored: tuple[str, ...] = ()
    grammar: str = ""
    """of the answer that the same body would get"""
    grammar_param: str = ""
    """what the client calls it"""


@dataclass(frozen=True)
class PlainText:
    """Answer of /detokenize."""

    text: str
    ignored: tuple[str, ...] = ()
