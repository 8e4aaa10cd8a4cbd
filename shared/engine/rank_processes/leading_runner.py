"""Rank 0's runner: every batch it runs, the followers run too."""

import weakref

import torch

from shared.engine.parallel.ranks import Ranks
from shared.engine.rank_processes.followers import Followers
from shared.engine.running.model_runner import OnStored, Runner
from shared.engine.scheduling.batch import HostBatch


class LeadingRunner:
    """See shared.engine.running.model_runner.Runner. RankLostError once a follower has ended.

    The followers end with it, also when it is forgotten without `close`.
    """

    def __init__(self, runner: Runner, ranks: Ranks, followers: Followers) -> None:
        self._own = [runner]
        self._ranks = ranks
        self._followers = followers
        self._end = weakref.finalize(self, _end, self._own, ranks, followers)
        self.runs_ahead = runner.runs_ahead
        self.device = runner.device
        self.whole_rows = runner.whole_rows
        self.scorer = runner.scorer  # rank 0 alone has whole logits

    @torch.inference_mode()
    def run(
        self,
        batch: HostBatch,
        previous: torch.Tensor | None = None,
        on_stored: OnStored | None = None,
    ) -> torch.Tensor:
        with self._followers.explained():
            self._followers.send(batch)
            if batch.awaits_tokens:
                assert previous is not None
                previous = self._ranks.broadcast(previous)
            return self._own[0].run(batch, previous, on_stored)

    def meet(self) -> None:
        with self._followers.explained():
            self._followers.call()
            self._ranks.least(0)

    def rehearsal(self) -> HostBatch | None:
        return self._own[0].rehearsal()

    def exercise(self) -> torch.Tensor | None:
        return self._own[0].exercise()

    def close(self) -> None:
        """End the followers; no call may follow."""
        self._end()


def _end(own: list[Runner], ranks: Ranks, followers: Followers) -> None:
    followers.dismiss()
    own.clear()  # a group waits for the graphs that its calls were captured in
    if not followers.broken:  # else the device may wait for that rank forever, and leaving for it
        ranks.close()
    followers.close()
