"""A link whose bytes stand still, are damaged or lose their source on purpose."""

import torch

from shared.mover.copies import CopyError
from shared.mover.links.gloo import GlooLink
from shared.mover.links.link import End
from tests.support.fakes.faulty_transport import Fault
from tests.support.fakes.strikes import Strikes


class FaultyLink(GlooLink):
    """The taking end of one; what comes first is the probe, which is spared."""

    def __init__(
        self,
        strikes: Strikes,
        made: "list[FaultyLink]",
        end: End,
        host: str,
        device: torch.device,
    ) -> None:
        super().__init__(end, host, device)
        self._strikes = strikes
        self.num_received = 0
        self.fails = False
        """whatever comes from now on"""
        self.is_closed = False
        made.append(self)

    def receive(self, rows: torch.Tensor) -> None:
        self.num_received += 1
        if self.num_received == 1:
            super().receive(rows)
            return
        fault = self._strikes.read()
        self._strikes.half_read()
        if self.fails:
            raise CopyError("cut off")
        super().receive(rows)
        if fault is Fault.CORRUPT:
            rows[-1] ^= 1

    def close(self) -> None:
        super().close()
        self.is_closed = True
