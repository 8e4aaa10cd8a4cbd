"""Where a model reasons before it answers: what its template, its tokenizer and a prompt say of it.

Some chat templates open the block themselves at the end of the prompt; then the answer begins
inside it. Otherwise it is reasoning only if the answer begins with the tag.
"""

from typing import Literal

OPEN = "<think>"
CLOSE = "</think>"
ReasoningStart = Literal["none", "possible", "open"]
"""of an answer: no reasoning, reasoning if it begins with the tag, or in it from the start"""
ReasoningName = Literal["none", "think"]


def choose_reasoning(
    setting: str, template_source: str, added_tokens: frozenset[str]
) -> ReasoningName:
    """What `--reasoning-parser` means for a model: "auto" looks at the template, then at the
    tokenizer."""
    if setting == "none":
        return "none"
    marked = CLOSE in template_source or {OPEN, CLOSE} <= added_tokens
    return "think" if setting == "think" or marked else "none"


def reasoning_start(prompt: str) -> ReasoningStart:
    """How the answer to a rendered prompt begins: a template that turns thinking off closes the
    reasoning before it."""
    prompt = prompt.rstrip()
    if prompt.endswith(CLOSE):
        return "none"
    return "open" if prompt.endswith(OPEN) else "possible"
