"""The query of /v1/baton/requests: which of the last requests are asked for."""

from collections.abc import Iterable

from services.gateway.owner.records.receipts import MAX_RECEIPTS
from services.gateway.owner.records.row import RowFilter
from shared.errors import RequestError

MARKS = ("failed", "slow", "retried")
DEFAULT_LIMIT = 50


def row_filter(query: Iterable[tuple[str, str]], tenant: str | None) -> RowFilter:
    """Of the pairs of a query; RequestError names the one that is wrong. `tenant`: whose requests
    may be shown; None: everybody's."""
    given: dict[str, str] = {}
    for name, value in query:
        if name not in ("limit", *MARKS):
            raise RequestError(
                f"{name}: unknown query parameter; it may have limit, {', '.join(MARKS)}",
                param=name,
            )
        if name in given:
            raise RequestError(f"{name}: is there twice", param=name)
        given[name] = value
    return RowFilter(
        _limit(given.pop("limit", str(DEFAULT_LIMIT))),
        tenant,
        **{name: _flag(name, value) for name, value in given.items()},
    )


def _limit(value: str) -> int:
    digits = value.isascii() and value.isdigit() and len(value) <= len(str(MAX_RECEIPTS))
    limit = int(value) if digits else 0
    if not 1 <= limit <= MAX_RECEIPTS:
        raise RequestError(f"limit: must be a number from 1 to {MAX_RECEIPTS:,}", param="limit")
    return limit


def _flag(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise RequestError(f"{name}: must be 0 or 1", param=name)
    return value == "1"
