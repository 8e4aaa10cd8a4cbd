"""Which fields each endpoint takes, how each is read, and which are accepted without effect.

Three tables say it all: the readers of the fields we implement, the values under which a field
that would change the answer, but is not implemented, changes nothing (`NEUTRAL`), and the fields
whose value never matters (`IGNORED`). What stands in none of them is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.gateway.owner.generation import Endpoint
from services.gateway.prompt import guided
from services.gateway.prompt.response_format import response_format
from services.gateway.prompt.tools import read_tool_choice, read_tools
from shared.fields.readers import (
    Reader,
    flag,
    integer,
    invalid,
    stream_options,
    text,
    token_ids,
)
from shared.queue.backlog import MAX_PRIORITY
from shared.text.messages import read_messages
from shared.text.sampling_fields import MAX_LOGPROBS, MAX_TOKENS, SAMPLING_READERS
from shared.text.template_values import read_effort, read_template_kwargs

MAX_PROMPTS = 128
MAX_CHOICES = 128
"""of one answer: prompts times n"""
NUM_COMPLETED = f"an integer from 1 to {MAX_TOKENS}, or 0 with echo: true"
"""what `max_tokens` of a completion must be"""


def prompts(value: Any, param: str) -> tuple[str | tuple[int, ...], ...]:
    """Text, token ids, or a list of either."""
    if type(value) is str and value:
        return (value,)
    if type(value) is not list or not value:
        raise invalid(param, "a non-empty string or a non-empty list of token ids")
    kinds = set(map(type, value))
    if kinds not in ({str}, {list}):
        return (token_ids(value, param),)
    if len(value) > MAX_PROMPTS:
        raise invalid(param, f"at most {MAX_PROMPTS} prompts")
    for item, name in zip(value, prompt_names(len(value)), strict=True):
        if not item:
            raise invalid(name, "a non-empty string or a non-empty list of token ids")
    return tuple(item if type(item) is str else token_ids(item, param) for item in value)


def completed_tokens(value: Any, param: str) -> int:
    """`max_tokens` of a completion; whether 0 has its `echo` is checked with all fields."""
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise invalid(param, NUM_COMPLETED)
    return value


def prompt_names(num_prompts: int) -> list[str]:
    """What errors call each of the prompts."""
    return ["prompt"] if num_prompts == 1 else [f"prompt[{at}]" for at in range(num_prompts)]


SHARED_READERS: dict[str, Reader] = {
    "model": text,
    **SAMPLING_READERS,
    "response_format": response_format,
    "priority": integer(0, MAX_PRIORITY),
    "stream": flag,
    "stream_options": stream_options,
    "tools": read_tools,
    "tool_choice": read_tool_choice,
    "parallel_tool_calls": flag,
    **guided.READERS,
    "return_token_ids": flag,
    "return_tokens_as_token_ids": flag,
    "user": text,
}
READERS: dict[Endpoint, dict[str, Reader]] = {
    "chat": {
        "messages": read_messages,
        **SHARED_READERS,
        "max_completion_tokens": integer(1, MAX_TOKENS),
        "logprobs": flag,
        "top_logprobs": integer(0, MAX_LOGPROBS),
        "prompt_logprobs": integer(0, MAX_LOGPROBS),
        "chat_template_kwargs": read_template_kwargs,
        "reasoning_effort": read_effort,
    },
    "text": {
        "prompt": prompts,
        **SHARED_READERS,
        "max_tokens": completed_tokens,
        "echo": flag,
        "logprobs": integer(0, MAX_LOGPROBS),
        "prompt_logprobs": integer(0, MAX_LOGPROBS),
    },
}
REQUIRED: dict[Endpoint, tuple[str, ...]] = {
    "chat": ("messages", "model"),
    "text": ("prompt", "model"),
}
OTHER: dict[Endpoint, Endpoint] = {"chat": "text", "text": "chat"}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "cache_salt": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "custom_logit_processor": (),
    "documents": ([],),
    "dry_multiplier": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "input_embeds": (),
    "input_ids": (),
    "json_schema": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_path": (),
    "mirostat": (0,),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "multi_modal_data": (),
    "no_repeat_ngram_size": (0,),
    "prompt_embeds": (),
    "remote_host": (),
    "request_id": (),
    "return_hidden_states": (False,),
    "separate_reasoning": (True,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ([],),
    "store": (False,),
    "stream_reasoning": (True,),
    "structural_tag": (),
    "suffix": ("",),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""field -> values under which leaving it out would give the same answer; null always is"""
OWN_NEUTRAL: dict[Endpoint, dict[str, tuple[Any, ...]]] = {"chat": {"echo": (False,)}, "text": {}}
"""the same of one endpoint, where the other one implements the field"""
IGNORED: dict[str, type] = {
    "guided_decoding_backend": str,
    "metadata": dict,
    "prompt_cache_key": str,
    "prompt_cache_options": dict,
    "prompt_cache_retention": str,
    "safety_identifier": str,
    "verbosity": str,
}
"""field -> type; it is for the client's own book-keeping, or a hint that binds nobody"""


@dataclass(frozen=True)
class FieldTable:
    """What one API takes."""

    readers: Mapping[str, Reader]
    required: tuple[str, ...]
    neutral: Mapping[str, tuple[Any, ...]]
    """as `NEUTRAL`"""
    ignored: Mapping[str, type]
    """as `IGNORED`"""
    elsewhere: frozenset[str]
    """fields that another API has a reader for: they mean something, and have no place here"""

    def knows(self, name: str) -> bool:
        """Whether a field without a reader is one we have heard of."""
        return name in self.neutral or name in self.ignored or name in self.elsewhere


TABLES: dict[Endpoint, FieldTable] = {
    endpoint: FieldTable(
        READERS[endpoint],
        REQUIRED[endpoint],
        NEUTRAL | OWN_NEUTRAL[endpoint],
        IGNORED,
        frozenset(READERS[other]),
    )
    for endpoint, other in OTHER.items()
}
