"""The price of an hour of one GPU, which a query may name, and what a request cost by it."""

from collections.abc import Iterable, Mapping
from typing import Any

from shared.errors import RequestError
from shared.telemetry.cost import usd_of

PRICE = "usd_per_gpu_hour"
"""the parameter"""
MAX_USD = 1e6
DIGITS = 9
"""a token may cost less than a millionth of a USD"""


def read_price(text: str) -> float:
    """RequestError unless it is a number above 0, up to MAX_USD."""
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 < price <= MAX_USD:
        raise RequestError(f"{PRICE}: must be a number above 0, up to {MAX_USD:,.0f}", param=PRICE)
    return price


def receipt_price(query: Iterable[tuple[str, str]]) -> float | None:
    """Of the pairs of a receipt's query, which has nothing else; None: no price is asked with."""
    prices: list[float] = []
    for name, value in query:
        if name != PRICE:
            raise RequestError(f"{name}: unknown query parameter; it may have {PRICE}", param=name)
        prices.append(read_price(value))
    if len(prices) > 1:
        raise RequestError(f"{PRICE}: is there twice", param=PRICE)
    return prices[0] if prices else None


def priced(receipt: Mapping[str, Any], usd_per_gpu_hour: float) -> dict[str, Any]:
    """The receipt, with what the request cost and what the prefix cache saved of that. None where
    the GPU time is not known: gateways of the release before, which may have it, tell none."""
    return {
        **receipt,
        "usd": _usd(receipt.get("gpu_ms"), usd_per_gpu_hour),
        "saved_usd": _usd(receipt.get("saved_gpu_ms"), usd_per_gpu_hour),
    }


def _usd(gpu_ms: float | None, usd_per_gpu_hour: float) -> float | None:
    return None if gpu_ms is None else round(usd_of(gpu_ms, usd_per_gpu_hour), DIGITS)
