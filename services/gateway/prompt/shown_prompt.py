"""Prompts that an answer shows, or shows log-probabilities of, and what that may cost."""

from collections.abc import Sequence

from services.gateway.prompt.prepared import PreparedRequest
from shared.errors import RequestError
from shared.message_parts.prompt_logprobs import num_bytes
from shared.text.tokenizer import TextTokenizer

Prompt = str | tuple[int, ...]
MAX_SHOWN_BYTES = 64 * 2**20
"""of one answer. A prompt of 32,768 tokens with 20 alternatives each has 5.5 MB"""


def prompt_text(
    prompt: Prompt, ids: Sequence[int], tokenizer: TextTokenizer, *, whole: bool
) -> str:
    """As the client wrote it, or what its tokens make; `whole`: none of it was cut off."""
    if isinstance(prompt, str) and whole:
        return prompt
    detokenizer = tokenizer.detokenizer()
    return detokenizer.push(ids) + detokenizer.end()


def shown_bytes(prepared: PreparedRequest) -> int:
    """What the gateway holds to show the prompts, in each choice: their texts, and the values as
    workers tell them."""
    num_text_bytes = sum(len(prompt.text.encode()) for prompt in prepared.prompts)
    num_tokens = sum(len(prompt.token_ids) for prompt in prepared.prompts)
    scored = prepared.scored_top >= 0
    values = num_bytes(num_tokens, prepared.scored_top) if scored else 0
    return prepared.num_choices * (num_text_bytes + values)


def checked(prepared: PreparedRequest) -> PreparedRequest:
    """The same. RequestError if it would show more than an answer may."""
    if shown_bytes(prepared) > MAX_SHOWN_BYTES:
        param = "prompt_logprobs" if prepared.prompt_logprobs >= 0 else "echo"
        raise RequestError(
            f"{param}: more than an answer may show of its prompts ({MAX_SHOWN_BYTES >> 20} MiB); "
            "ask for fewer prompts at once, fewer choices or fewer alternatives",
            code="invalid_value",
            param=param,
        )
    return prepared
