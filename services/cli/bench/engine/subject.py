"""What is measured: an engine that is given requests and returns their tokens."""

from dataclasses import dataclass
from typing import Protocol

from services.cli.bench.engine.workload import Workload


@dataclass(frozen=True)
class Run:
    """One workload from its first request's arrival to its last token on the host."""

    elapsed_s: float
    token_ids: tuple[tuple[int, ...], ...]
    """by request, in order"""
    steps_s: tuple[float, ...] = ()
    """of the steps in which every sequence got one token and no prompt was computed"""
    num_prefix_hits: int | None = None
    """prompt tokens that were not computed; None where nobody counts them"""
    num_preemptions: int | None = None


class Subject(Protocol):
    """An engine with a model; one user at a time."""

    @property
    def name(self) -> str:
        """For the figures: its name and version."""

    @property
    def vocab_size(self) -> int:
        """Prompts have ids below it."""

    @property
    def num_kv_tokens(self) -> int | None:
        """Positions that fit into its KV memory; None where it does not say."""

    def run(self, workload: Workload) -> Run:
        """BatonError if a sequence fails."""

    def close(self) -> None:
        """Gives the device's memory back; the last call."""
