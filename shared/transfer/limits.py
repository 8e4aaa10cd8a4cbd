"""What bounds hand-overs, whichever way the blocks go."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TransferLimits:
    """Bounds of every transport; a worker's settings fill them in."""

    lease_s: float = 30.0
    """a sealed offer waits this long for its reader's next sign of life (R16)"""
    max_pulls: int = 2
    """pulls that read at once from one source; the others wait in order"""
    progress_timeout_s: float = 10.0
    """a peer that sends or takes no byte for this long is lost"""
    max_read_bytes: int = 32 * 2**20
    """payload of one answer"""
    max_copy_bytes: int = 32 * 2**20
    """of one copy out of a pool that is mapped or joined"""
    in_bursts: bool = False
    """what is mapped is reached over links that take power (`shared.transfer.bursts`)"""
    num_pipelined_reads: int = 3
    """reads asked for before the first is answered"""

    @property
    def renew_every_s(self) -> float:
        """How often a reader says that it lives."""
        return min(self.lease_s, self.progress_timeout_s) / 3
