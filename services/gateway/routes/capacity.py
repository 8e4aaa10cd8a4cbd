"""What the workers of a model hold, and what a million tokens cost: the body of /v1/capacity."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from services.gateway.routes.price import PRICE, read_price
from shared.errors import RequestError
from shared.kv.layout import num_blocks_for
from shared.telemetry.cost import usd_per_million

LENGTHS = (1024, 4096, 8192, 32768)
MAX_LENGTHS = 32
MAX_TOKENS = 10_000_000


Worker = Mapping[str, Any]


class Asked(NamedTuple):
    """Of the query."""

    tokens: tuple[int, ...]
    """lengths of sequences; none: some that are usual"""
    usd_per_gpu_hour: float | None


def asked_of(query: Iterable[tuple[str, str]]) -> Asked:
    """RequestError names the parameter that is wrong."""
    tokens: list[int] = []
    usd: float | None = None
    for name, value in query:
        if name == "tokens":
            tokens += [_length(part) for part in value.split(",")]
        elif name == PRICE:
            usd = read_price(value)
        else:
            raise RequestError(
                f"{name}: unknown query parameter; it may have model, tokens, {PRICE}", param=name
            )
    if len(tokens) > MAX_LENGTHS:
        raise RequestError(f"tokens: must be at most {MAX_LENGTHS} numbers", param="tokens")
    return Asked(tuple(tokens), usd)


def capacity_body(status: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """`status`: the body of /v1/baton/status."""
    block_size, longest = status["block_size"], status["max_model_len"]
    workers = [_worker(entry, block_size) for entry in status["workers"]]
    wanted = asked.tokens or (*(length for length in LENGTHS if length < longest), longest)
    return {
        "model": status["model"],
        "max_model_len": longest,
        "block_size": block_size,
        "kv_token_bytes": max((worker["kv_token_bytes"] for worker in workers), default=0),
        "workers": workers,
        "pools": {role: _pool(workers, role) for role in ("prefill", "decode")},
        "sequences": [
            _sequences(workers if tokens <= longest else (), tokens, block_size)
            for tokens in sorted(set(wanted))
        ],
        "usd_per_million_tokens": _usd(workers, asked.usd_per_gpu_hour),
    }


def _worker(entry: Worker, block_size: int) -> dict[str, Any]:
    blocks, memory, gpus = entry["kv"]["total"], entry["memory_bytes"], entry["ranks"]
    tokens = blocks * block_size
    return {
        "id": entry["id"],
        "role": entry["role"],
        "ranks": gpus,
        "kv_blocks": blocks,
        "kv_blocks_free": entry["kv"]["free"] + entry["kv"]["cached"],
        "kv_tokens": tokens,
        "kv_token_bytes": memory.get("kv", 0) * gpus // tokens if tokens else 0,
        "memory_bytes": memory,
        **entry["rates"],
    }


def _pool(workers: Iterable[Worker], role: str) -> dict[str, Any]:
    """All workers of a role."""
    of_role = [worker for worker in workers if worker["role"] == role]
    summed = ("ranks", "kv_tokens", "prompt_tokens_s", "tokens_s")
    sums = {name: sum(worker[name] for worker in of_role) for name in summed}
    return {"workers": len(of_role), **sums}


def _sequences(workers: Iterable[Worker], tokens: int, block_size: int) -> dict[str, Any]:
    """Of one length: how many the decode workers hold at once, and how many more now. `workers`:
    those that take one so long."""
    each = num_blocks_for(tokens, block_size)
    decode = [worker for worker in workers if worker["role"] == "decode"]
    return {
        "tokens": tokens,
        "fit": sum(worker["kv_blocks"] // each for worker in decode),
        "fit_now": sum(worker["kv_blocks_free"] // each for worker in decode),
    }


def _usd(workers: Iterable[Worker], usd_per_gpu_hour: float | None) -> float | None:
    """Of the tokens sampled in the last minute, all workers paid for; None: no price, or no
    token."""
    ranks: int = sum(worker["ranks"] for worker in workers)
    tokens_s: float = sum(worker["tokens_s"] for worker in workers)
    if usd_per_gpu_hour is None or not tokens_s:
        return None
    return round(usd_per_million(usd_per_gpu_hour * ranks, tokens_s), 6)


def _length(text: str) -> int:
    digits = text.strip()
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 9 else 0
    if not 1 <= number <= MAX_TOKENS:
        raise RequestError(f"tokens: must be numbers from 1 to {MAX_TOKENS:,}", param="tokens")
    return number
