"""One `baton bench serve` from the first question to the last answer."""

import argparse
from collections.abc import Callable, Sequence
from itertools import tee

from services.cli.bench.measure import progress_line
from services.cli.bench.serve.load_points import (
    LoadPoint,
    TraceLoad,
    input_lengths,
    load_points,
    read_trace_load,
)
from services.cli.bench.serve.loaded_endpoint import LoadedEndpoint
from services.cli.bench.serve.report.summary import RunSummary
from services.cli.bench.serve.request_maker import request_maker, shortest_model
from services.cli.bench.serve.workload import Planner


class LoadSession:
    """The same requests for each endpoint: everything is planned once, then sent in turns."""

    def __init__(self, arguments: argparse.Namespace, endpoints: Sequence[LoadedEndpoint]) -> None:
        self._arguments = arguments
        self._endpoints = endpoints
        self.trace: TraceLoad | None = None
        if arguments.trace is not None:
            longest = shortest_model([one.facts for one in endpoints]).max_model_len
            self.trace = read_trace_load(arguments, longest)

    async def run(self, report: Callable[[Sequence[RunSummary]], None]) -> None:
        """Runs every load point; `report` gets each as it ends, a summary per endpoint."""
        seed = self._arguments.seed
        try:
            maker = await request_maker(self._arguments, self._endpoints)
            prompts = maker.prompts(seed)
            planner = maker.planner(prompts, seed)
            progress_line.show("making the requests")
            points = load_points(self._arguments, planner, self.trace)
            warm = planner.warm(self._arguments.warmup)
            for endpoint in self._endpoints:
                await endpoint.warm_up(warm)
            for endpoint in self._endpoints:
                await endpoint.measure_idle(prompts, input_lengths(points))
            for number, point in enumerate(points):
                report(await self._run_point(number, point, planner))
        finally:
            progress_line.clear()
            for endpoint in self._endpoints:
                endpoint.close()

    async def _run_point(
        self, number: int, point: LoadPoint, planner: Planner
    ) -> Sequence[RunSummary]:
        """On one endpoint after the other, so that none disturbs the other. The order turns round
        from point to point: what a machine does over time favours none."""
        streams = tee(planner.endless(), len(self._endpoints))
        turns = list(zip(self._endpoints, streams, strict=True))
        backwards = number % 2 == 1
        if backwards:
            turns.reverse()
        summaries = [await endpoint.run_point(point, stream) for endpoint, stream in turns]
        return summaries[::-1] if backwards else summaries
