"""A prompt that may be computed: read, checked and tokenized."""

from dataclasses import dataclass

from shared.protocol import Sampling


@dataclass(frozen=True)
class Prompt:
    """Nothing about it can be refused any more."""

    text: str | None
    """None where token ids were given"""
    token_ids: tuple[int, ...]
    samplings: tuple[Sampling, ...]
    """one for each choice"""
    stops: tuple[str, ...]
    prompt_logprobs: int = -1
    """as `shared.protocol.Work.prompt_logprobs`"""
    visible_ids: tuple[int, ...] = ()
    """special tokens that stay in the text: the tags of reasoning, where the model has such"""
