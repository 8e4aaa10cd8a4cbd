"""In which order an engine computes its prompts. Pure.

Prompts that fit one step are computed in order of arrival. A longer one lets later ones go first,
until PATIENCE times its own tokens have arrived after it: short prompts do not wait for a long
one's end, and no prompt waits forever.
"""

PATIENCE = 4
"""short prompts that are up to 4/5 of all tokens never wait for a long one's end"""


def due(num_arrived_tokens: int, num_tokens: int, step_tokens: int) -> int:
    """The prompt with the smallest goes first; of equal ones the one that arrived first.

    `num_arrived_tokens`: of all prompts before it. `num_tokens`: that it has to compute.
    """
    whole_steps = (num_tokens - 1) // step_tokens
    return num_arrived_tokens + PATIENCE * whole_steps * step_tokens
