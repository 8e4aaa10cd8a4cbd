"""Makes what is sent at a rate: the same requests at the same times for each topology."""

import argparse
import random
import zlib
from collections.abc import Sequence

from services.cli.bench.serve.flags import read_arrivals, read_limits
from services.cli.bench.serve.load_points import LoadPoint
from services.cli.bench.serve.prompts import PromptSource
from services.cli.bench.serve.request_maker import RequestMaker
from services.cli.bench.serve.trace_file import TraceLine, read_trace, spread_equal_times
from services.cli.bench.serve.workload import OpenLoop, PlannedRequest, Planner, fitting


class PointMaker:
    """By rate and seed."""

    def __init__(self, arguments: argparse.Namespace, maker: RequestMaker) -> None:
        self._arguments = arguments
        self._maker = maker
        self._trace: Sequence[TraceLine] = ()
        if arguments.trace is not None:
            self._trace = read_trace(arguments.trace)

    @property
    def text(self) -> str:
        """The load in words."""
        arguments = self._arguments
        if arguments.trace is not None:
            return f"{arguments.trace.name}, faster or slower"
        arrivals = read_arrivals(arguments).text
        return f"{arrivals}, {arguments.input} tokens in, {arguments.output} out"

    def prompts(self, seed: int) -> PromptSource:
        return self._maker.prompts(seed)

    def at(
        self, rate: float, seed: int, attempt: int = 0
    ) -> tuple[LoadPoint, list[PlannedRequest]]:
        """The load, and requests to warm up with. Whatever the `attempt`, arrivals and lengths are
        the same; its prompts are others, as a cache knows those that were sent before."""
        own = zlib.crc32(f"{seed} {rate}".encode())
        prompts = self._maker.prompts(own + attempt)
        planner = self._maker.planner(prompts, own)
        plan = self._of_trace(planner, rate, seed) if self._trace else self._drawn(planner, rate)
        label = f"{rate:g}/s, seed {seed}"
        return LoadPoint(label, plan), planner.warm(self._arguments.warmup)

    def _drawn(self, planner: Planner, rate: float) -> OpenLoop:
        return planner.open_loop(read_arrivals(self._arguments), rate, read_limits(self._arguments))

    def _of_trace(self, planner: Planner, rate: float, seed: int) -> OpenLoop:
        lines = self._trace
        if not self._arguments.no_jitter:
            rng = random.Random(f"{seed} jitter")  # noqa: S311 a workload, no secret
            lines, _ = spread_equal_times(lines, rng)
        speed = rate * lines[-1].at_s / len(lines)
        limits = read_limits(self._arguments)
        fit, _ = fitting(lines, self._maker.max_model_len, limits, speed)
        return planner.of_trace(fit, speed)
