"""What tokens and GPU time cost."""

MS_PER_HOUR = 3_600_000


def usd_per_million(usd_per_hour: float, tokens_per_s: float) -> float:
    """Of a million tokens: the price of an hour over the tokens of an hour, in millions."""
    return usd_per_hour / (tokens_per_s * 3600 / 1e6)


def usd_of(gpu_ms: float, usd_per_gpu_hour: float) -> float:
    """Of `gpu_ms` milliseconds of one GPU."""
    return gpu_ms / MS_PER_HOUR * usd_per_gpu_hour
