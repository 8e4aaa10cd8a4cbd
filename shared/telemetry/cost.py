"""What tokens cost."""


def usd_per_million(usd_per_hour: float, tokens_per_s: float) -> float:
    """Of a million tokens: the price of an hour over the tokens of an hour, in millions."""
    return usd_per_hour / (tokens_per_s * 3600 / 1e6)
