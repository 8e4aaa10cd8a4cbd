"""How full an engine is, as it says after every step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLoad:
    """Sequences, and KV blocks: free + cached + held == total."""

    running: int
    waiting: int
    total: int
    free: int
    cached: int
    held: int
