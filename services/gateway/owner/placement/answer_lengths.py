"""How long answers are, by tenant: what a request is expected to be served. Pure."""

KEPT = 1 - 1 / 16
"""of a mean, when one more answer joins it: about the last 16 count"""


class AnswerLengths:
    """Of one gateway. There are as many tenants as the file of keys names."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}
        self._mean_of_all = 0.0

    def note(self, tenant: str, num_tokens: int) -> None:
        """An answer has ended."""
        self._mean[tenant] = _next(self._mean.get(tenant, num_tokens), num_tokens)
        self._mean_of_all = _next(self._mean_of_all or num_tokens, num_tokens)

    def expected(self, tenant: str, max_tokens: int) -> int:
        """Tokens of a tenant's next answer; until it had one, of anybody's."""
        return min(max_tokens, round(self._mean.get(tenant, self._mean_of_all)))


def _next(mean: float, num_tokens: int) -> float:
    return KEPT * mean + (1 - KEPT) * num_tokens
