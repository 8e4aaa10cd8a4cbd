"""The `usage` object: what a request cost in tokens."""

from typing import Any


def usage(
    num_prompt_tokens: int,
    num_tokens: int,
    num_cached_tokens: int,
    num_reasoning_tokens: int | None = None,
) -> dict[str, Any]:
    """`num_reasoning_tokens`: of the output; None where the model marks none."""
    cost: dict[str, Any] = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
    }
    if num_reasoning_tokens is not None:
        cost["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
    return cost
