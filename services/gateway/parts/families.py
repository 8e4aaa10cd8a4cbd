"""Which family's syntax a model writes its tool calls in, from its chat template."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from services.gateway.parts.part import ToolParser
from services.gateway.parts.tool_parsers import hermes, llama, mistral

FamilyName = Literal["none", "hermes", "llama", "mistral"]
TAGS: dict[FamilyName, tuple[str, ...]] = {
    "none": (),
    "hermes": (hermes.OPEN, hermes.CLOSE),
    "llama": (llama.TAG,),
    "mistral": (mistral.TAG, mistral.ARGS, mistral.CALL_ID),
}
"""what a family's parser must see, even where the tokenizer calls it special"""


@dataclass(frozen=True)
class ToolFamily:
    """A model's way of writing calls."""

    name: FamilyName = "none"
    named_arguments: bool = False
    """Mistral's newer form, a name in front of the arguments instead of an object around both"""
    tag_ids: tuple[tuple[str, int], ...] = ()
    """tags of the family that are special tokens of the model"""


def choose_family(
    setting: str, template_source: str, special_tokens: Mapping[str, int]
) -> ToolFamily:
    """What `--tool-parser` means for a model; "auto" goes by the tags that its template, or for
    Llama its tokenizer, names."""
    name = _named(setting) if setting != "auto" else _recognised(template_source, special_tokens)
    return ToolFamily(
        name=name,
        named_arguments=mistral.ARGS in template_source or mistral.ARGS in special_tokens,
        tag_ids=tuple((tag, special_tokens[tag]) for tag in TAGS[name] if tag in special_tokens),
    )


def tool_parser(name: FamilyName, functions: frozenset[str]) -> ToolParser | None:
    """A parser for one answer; None if the family has no calls."""
    if name == "hermes":
        return hermes.HermesParser(functions)
    if name == "llama":
        return llama.LlamaParser(functions)
    if name == "mistral":
        return mistral.MistralParser(functions)
    return None


def _named(setting: str) -> FamilyName:
    return next((name for name in TAGS if name == setting), "none")


def _recognised(template_source: str, special_tokens: Mapping[str, int]) -> FamilyName:
    if mistral.TAG in template_source:
        return "mistral"
    if hermes.OPEN in template_source:
        return "hermes"
    if llama.TAG in template_source or llama.TAG in special_tokens:
        return "llama"
    return "none"
