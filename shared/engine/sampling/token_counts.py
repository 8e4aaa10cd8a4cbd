"""Which tokens a sequence has so far, and how often its output has each, for the penalties.

Kept step by step, so that a step costs the same however long the sequence is, and rebuilt from
its token ids wherever it is admitted: a resumed, preempted or handed-over sequence counts what
the first attempt would have counted by then.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Run

from shared.protocol import Sampling


class TokenCounts:
    """The distinct tokens of one sequence, in the order of their first appearance.

    Two flat arrays, so that the rows of a step become tensors without a loop over tokens; what
    keeps counts on a device instead needs the same two calls, the constructor and `append`.
    """

    __slots__ = ("_index_of", "num_in_output", "token_ids")

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._index_of = {token_id: index for index, token_id in enumerate(dict.fromkeys(prompt))}
        self.token_ids = array("q", self._index_of)
        """i64[N], no two equal"""
        self.num_in_output = array("i", bytes(4 * len(self.token_ids)))
        """i32[N]; 0 for what only the prompt has"""
        for token_id in output:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """The output has one more token."""
        index = self._index_of.setdefault(token_id, len(self.token_ids))
        if index == len(self.token_ids):
            self.token_ids.append(token_id)
            self.num_in_output.append(0)
        self.num_in_output[index] += 1


def counts_for(
    sampling: Sampling, token_ids: Run[int], num_prompt_tokens: int
) -> TokenCounts | None:
    """Counts of a sequence whose output begins at `num_prompt_tokens`, or None where nothing
    asks for them. The prompt's tokens are in them only for the repetition penalty."""
    repetition = sampling.repetition_penalty != 1.0
    if not (repetition or sampling.presence_penalty or sampling.frequency_penalty):
        return None
    prompt = token_ids[:num_prompt_tokens] if repetition else ()
    return TokenCounts(prompt, token_ids[num_prompt_tokens:])
