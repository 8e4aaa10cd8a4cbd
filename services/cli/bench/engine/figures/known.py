"""What is known of others, and what is to be reached; both on one NVIDIA H200 only.

vLLM 0.26.0: FlashAttention-3, CUDA graphs, torch.compile, asynchronous scheduling, its `LLM` API.
Driver 580.159, torch 2.11.0+cu130, bfloat16, random weights of the real shapes, prompts of random
ids without a common prefix.
"""

from collections.abc import Mapping
from dataclasses import dataclass

DEVICE = "H200"
"""in the device's name, else nothing here says anything about it"""
DECODE_AHEAD = 1 / 1.05
OFFLINE_AHEAD = 1.03


@dataclass(frozen=True)
class Known:
    """One figure of the table."""

    rival: float
    must: float
    """at least this good"""
    reach: tuple[float, ...] = ()
    """bars beyond it, the nearest first"""
    name: str = "vLLM 0.26.0"
    """whose figure `rival` is"""


def _decode(rival: float, *reach: float) -> Known:
    return Known(rival, rival * DECODE_AHEAD, reach)


def _offline(rival: float, *reach: float) -> Known:
    return Known(rival, rival * OFFLINE_AHEAD, reach)


KNOWN: Mapping[tuple[str, str], Known] = {
    ("llama-3.1-8b", "tpot-1"): _decode(4.96, 4.3, 3.9),
    ("llama-3.1-8b", "tpot-32"): _decode(6.39, 5.6, 5.1),
    ("llama-3.1-8b", "tpot-128"): _decode(10.96, 10.0, 8.9),
    ("llama-3.1-8b", "tpot-256"): _decode(18.64, 16.7, 15.6),
    ("llama-3.1-8b", "tpot-64-4k"): _decode(13.94, 12.9),
    ("llama-3.1-8b", "prefill-1k"): Known(27.1, 27.1, (23.0,)),
    ("llama-3.1-8b", "prefill-8k"): Known(211.0, 211.0, (205.0,)),
    ("llama-3.1-8b", "prefill-32k"): Known(1189.0, 1189.0, (1150.0,)),
    ("llama-3.1-8b", "offline"): _offline(35_849, 37_000, 39_000),
    ("qwen3-0.6b", "tpot-1"): _decode(1.65, 0.75),
    ("qwen3-0.6b", "tpot-32"): _decode(2.66, 1.7),
    ("qwen3-0.6b", "tpot-128"): _decode(6.01, 4.8),
    ("qwen3-0.6b", "tpot-256"): _decode(10.68, 9.2),
    ("qwen3-0.6b", "offline-mixed"): _offline(24_009, 30_000),
}
"""(model, cell) -> milliseconds, or tokens per second for offline"""


def known_figure(model: str, cell: str, device_name: str, *, tp_size: int = 1) -> Known | None:
    """None for another device or model, and for several GPUs."""
    if DEVICE not in device_name or tp_size != 1:
        return None
    return KNOWN.get((model, cell))
