"""--tune: the sizes of an engine's steps that are left open, found on the device that serves.

    both are set        nothing is timed
    found before        they are read from a file
    otherwise           decode steps of more and more sequences, then full steps of more and more
                        tokens; `shared.engine.loading.tuning.step_choice` chooses

It comes before the KV pool of a GPU is made and its graphs are captured, for both depend on the
sizes. Whatever else the machine does meanwhile is in the times.

Where a model has several ranks, all time the same steps, and a step takes as long as on the slowest
of them, so all choose alike. Rank 0 has the file.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence

import torch

from shared.engine.loading.room_advice import NO_MEMORY
from shared.engine.loading.tuning.loaded_step import decode_step, full_step
from shared.engine.loading.tuning.step_choice import (
    DECODE_SHARE,
    NEARLY,
    TimedStep,
    choose,
    reachable,
    seq_sizes,
    token_sizes,
)
from shared.engine.loading.tuning.tuned_file import TunedFile
from shared.engine.parallel.ranks import Ranks
from shared.engine.running.model_runner import Runner
from shared.engine.scheduling.batch import HostBatch
from shared.errors import SettingsError
from shared.kv.layout import num_blocks_for
from shared.settings.groups import EngineSettings
from shared.settings.profiles import LARGEST, PROFILES, StepSize

logger = logging.getLogger(__name__)

CONTEXT = 512
"""positions that a decoding sequence attends to, or all of the longest sequence"""
NUM_RUNS = 3
"""of each step; the first may compile or capture, and the shortest counts"""
MOST_S = 5.0
"""after so long no further size is timed, whatever the machine does besides"""
FAR = 2.0
"""times the limit: such a step runs only twice"""

Trial = Callable[[], tuple[Runner, int]]
"""a runner over a pool that holds nothing yet, and how many blocks that has"""


class Tuner:
    """Of one rank of an engine; every rank makes the same calls."""

    def __init__(
        self,
        engine: EngineSettings,
        device_type: str,
        block_size: int,
        longest: int,
        ranks: Ranks,
        file: TunedFile | None,
    ) -> None:
        """`longest`: tokens of a sequence. `file`: where rank 0 keeps the sizes; None: nowhere."""
        self.engine = engine
        self._ranks = ranks
        self._block_size, self._longest = block_size, longest
        self._context = min(CONTEXT, longest)
        self._most = PROFILES[LARGEST].on(device_type)
        self._limit_s = PROFILES[engine.profile].gaps * engine.slo_gap_ms / 1e3
        self._file = file
        self._known: StepSize | None = None
        if not engine.tune or (engine.max_num_batched_tokens and engine.max_num_seqs):
            self._known = engine.step_size(device_type, block_size)
        else:
            self._known = self._kept()

    @property
    def largest(self) -> StepSize:
        """No step is larger, now or later."""
        if self._known is not None:
            return self._known
        num_seqs = self._seq_sizes[-1]
        return StepSize(self._token_sizes(num_seqs)[-1], num_seqs)

    @property
    def num_blocks(self) -> int:
        """Of a pool in which each sequence of a trial has blocks of its own."""
        return self.largest.num_seqs * num_blocks_for(self._context, self._block_size)

    def find(self, trial: Trial) -> StepSize:
        """The sizes; `trial` is called if they have to be timed. SettingsError where the device has
        no memory for it."""
        if self._known is None:
            start_s = time.perf_counter()
            self._known = self._timed(*_made(trial))
            logger.info("tune: took %.1f s", time.perf_counter() - start_s)
            if self._file is not None:
                self._file.write(self._known)
        return self._known

    def _kept(self) -> StepSize | None:
        """What rank 0 found at an earlier start."""
        file = self._file
        found = file.read(self._possible) if file else None
        if file and found:
            logger.info(
                "tune: %d tokens and %d sequences, found at an earlier start; remove %s to time "
                "again",
                *(found.num_tokens, found.num_seqs, file.path),
            )
        size = StepSize(*(self._told(number) for number in found or (0, 0)))
        return size if size.num_tokens else None

    def _told(self, number: int) -> int:
        """Rank 0's number, which is less than 2^62."""
        return self._ranks.least(number if self._ranks.rank == 0 else 2**62)

    def _timed(self, runner: Runner, num_blocks: int) -> StepSize:
        def decoding(num_seqs: int) -> tuple[HostBatch, int]:
            return decode_step(num_seqs, self._context, num_blocks, self._block_size), num_seqs

        decode_limit_s = DECODE_SHARE * self._limit_s
        seqs = self._chosen("sequences", runner, self._seq_sizes, decoding, decode_limit_s)

        def full(num_tokens: int) -> tuple[HostBatch, int]:
            return full_step(
                num_tokens, seqs, self._context, self._longest, num_blocks, self._block_size
            )

        sizes = self._token_sizes(seqs)
        return StepSize(self._chosen("tokens", runner, sizes, full, self._limit_s), seqs)

    @property
    def _seq_sizes(self) -> tuple[int, ...]:
        most_tokens = self.engine.max_num_batched_tokens or self._most.num_tokens
        return seq_sizes(
            self.engine.max_num_seqs, self._most.num_seqs, most_tokens, self._block_size
        )

    def _token_sizes(self, num_seqs: int) -> tuple[int, ...]:
        given = self.engine.max_num_batched_tokens
        return token_sizes(given, self._most.num_tokens, num_seqs, self._block_size)

    def _possible(self, size: StepSize) -> bool:
        if size.num_seqs not in self._seq_sizes:
            return False
        return size.num_tokens in self._token_sizes(size.num_seqs)

    def _chosen(
        self,
        what: str,
        runner: Runner,
        sizes: Sequence[int],
        step_of: Callable[[int], tuple[HostBatch, int]],
        wanted_s: float,
    ) -> int:
        """The size, and in the log why. `step_of`: a step of that size and its useful tokens."""
        if len(sizes) == 1:
            return sizes[0]
        steps: list[TimedStep] = []
        limit_s, start_s = wanted_s, time.perf_counter()
        for size in sizes:
            batch, num_useful = step_of(size)
            seconds_s = self._seconds_of(runner, batch, limit_s)
            if seconds_s is None:
                break
            if not steps:
                limit_s = reachable(wanted_s, seconds_s)
            steps.append(TimedStep(size, num_useful, seconds_s))
            if seconds_s > limit_s or self._slowest_s(start_s) > MOST_S:
                break
        if not steps:
            raise SettingsError(f"--tune: a step of {sizes[0]} {what} {NO_MEMORY}")
        found = choose(steps, limit_s)
        times = ", ".join(f"{step.size}: {1e3 * step.seconds_s:.1f}" for step in steps)
        logger.info("tune: ms of steps by %s: %s", what, times)
        logger.info(
            "tune: %d %s: %.0f tokens/s, the fewest with %.0f %% of the most within %.0f ms%s",
            *(found.size, what, found.rate, 100 * NEARLY, 1e3 * limit_s),
            f", for {1e3 * wanted_s:.0f} ms are out of reach here" if limit_s > wanted_s else "",
        )
        return found.size

    def _seconds_of(self, runner: Runner, batch: HostBatch, limit_s: float) -> float | None:
        """None if the device has no memory for it. SettingsError where others wait for this rank
        in the middle of it."""
        least_s = math.inf
        try:
            for turn in range(NUM_RUNS):
                start_s = time.perf_counter()
                runner.run(batch).argmax().cpu()
                least_s = min(least_s, self._slowest_s(start_s))
                if turn and least_s > FAR * limit_s:
                    break
        except torch.OutOfMemoryError:
            if self._ranks.size > 1:
                raise SettingsError(f"--tune: a step {NO_MEMORY}") from None
            return None
        return least_s

    def _slowest_s(self, start_s: float) -> float:
        """Since then, on the rank where it is longest."""
        return -self._ranks.least(round((start_s - time.perf_counter()) * 1e9)) / 1e9


def _made(trial: Trial) -> tuple[Runner, int]:
    try:
        return trial()
    except torch.OutOfMemoryError:
        raise SettingsError(f"--tune: the KV that timed steps read {NO_MEMORY}") from None
