"""What the gateway counts; the metrics endpoint reads it."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class DispatchCounters:
    """Totals since the start."""

    direct_assigns: int = 0
    """assigned on the link without the backlog"""
    backlog_puts: int = 0
    backlog_pulls: int = 0
    """assigned because a worker popped the request"""
    retries_held: int = 0
    """that had to wait for the retry budget"""
    attempts: Counter[str] = field(default_factory=Counter)
    """by reason: first, or what ended the attempt before"""
    requests: Counter[str] = field(default_factory=Counter)
    """by outcome"""
    refused: Counter[int] = field(default_factory=Counter)
    """for lack of room or of a worker, by status"""
    admissions_refused: Counter[str] = field(default_factory=Counter)
    """by reason"""
