"""Profiles: how large an engine's steps are, by what matters most.

A step computes the decoding sequences and, with what is left of its tokens, chunks of prompts. So
large chunks keep the device busy, and whoever reads an answer meanwhile waits for them; few
sequences make each step short.
"""

from collections.abc import Mapping
from typing import NamedTuple


class StepSize(NamedTuple):
    """Of one step."""

    num_tokens: int
    num_seqs: int


class Profile(NamedTuple):
    """What an open setting is."""

    cpu: StepSize
    gpu: StepSize
    gaps: float
    """how many times --slo-gap-ms a step may last at most, where --tune finds its size"""
    why: str

    def on(self, device_type: str) -> StepSize:
        return self.cpu if device_type == "cpu" else self.gpu


LARGEST = "high_throughput"
"""whose steps are the largest"""
PROFILES: Mapping[str, Profile] = {
    "low_latency": Profile(
        StepSize(256, 16),
        StepSize(512, 64),
        0.5,
        "small chunks and few sequences: tokens come evenly, fewer in all",
    ),
    "balanced": Profile(
        StepSize(512, 64),
        StepSize(2048, 256),
        1.0,
        "prompts are computed nearly as fast as they can be, and gaps stay short",
    ),
    LARGEST: Profile(
        StepSize(2048, 128),
        StepSize(8192, 512),
        10.0,
        "large chunks and many sequences: the most tokens in all, with longer gaps",
    ),
}
