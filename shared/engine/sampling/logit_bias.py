"""A request's logit_bias as flat arrays: read once, added in every step."""

from array import array

from shared.protocol import Sampling


class LogitBias:
    """What is added to the logits of some tokens."""

    __slots__ = ("added", "token_ids")

    def __init__(self, logit_bias: tuple[tuple[int, float], ...]) -> None:
        self.token_ids = array("q", (token_id for token_id, _ in logit_bias))
        """i64[N], no two equal"""
        self.added = array("f", (added for _, added in logit_bias))
        """f32[N]"""


def bias_for(sampling: Sampling) -> LogitBias | None:
    """None where nothing is added."""
    return LogitBias(sampling.logit_bias) if sampling.logit_bias else None
