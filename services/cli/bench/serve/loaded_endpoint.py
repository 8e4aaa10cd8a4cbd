"""One endpoint of a run: what it told, its connections, and what is measured on it."""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

from services.cli.bench.measure import progress_line
from services.cli.bench.serve.calibration import calibrate, calibration_lengths
from services.cli.bench.serve.client.load_client import LoadClient
from services.cli.bench.serve.endpoint import Endpoint, EndpointFacts
from services.cli.bench.serve.flags import given_prefill, read_limits, read_service_limits
from services.cli.bench.serve.load_loop import LoadRun, run_closed, run_open
from services.cli.bench.serve.load_points import LoadPoint
from services.cli.bench.serve.progress import shown
from services.cli.bench.serve.prompts import PromptSource
from services.cli.bench.serve.report.summary import Ideal, RunSummary
from services.cli.bench.serve.request_template import RequestTemplate
from services.cli.bench.serve.sample import RequestSample
from services.cli.bench.serve.workload import PlannedRequest
from shared.errors import BatonError


class LoadedEndpoint:
    """Takes the requests of a run; `close` ends its connections."""

    def __init__(
        self, arguments: argparse.Namespace, endpoint: Endpoint, facts: EndpointFacts
    ) -> None:
        self.endpoint = endpoint
        self.facts = facts
        self._arguments = arguments
        template = RequestTemplate(endpoint, _fields(arguments, facts.model))
        self._client = LoadClient(endpoint, template, arguments.timeout_s)
        self.ideal: Ideal | None = None
        """None until it is measured"""

    async def first_answer(self, planned: PlannedRequest) -> RequestSample:
        """Of a request before the run: one that fails tells what is wrong with them all."""
        sample = await self._client.send(planned, time.monotonic())
        if not sample.ok and sample.error != "empty":
            where = f"{self.endpoint.url}{self.endpoint.path}"
            doubt = self.facts.model_doubt
            raise BatonError(f"{where} failed: {sample.error}: {sample.error_text}{doubt}")
        return sample

    async def warm_up(self, requests: Sequence[PlannedRequest]) -> None:
        for number, planned in enumerate(requests):
            self._show(f"warm-up {number + 1} of {len(requests)}")
            await self.first_answer(planned)

    async def measure_idle(self, prompts: PromptSource, inputs: Sequence[int]) -> None:
        """Learns the ideal of prompts with these lengths, unless flags say how, or not to."""
        arguments = self._arguments
        if arguments.no_ideal or not inputs:
            return
        num_servers = arguments.ideal_servers or self.facts.num_prefill_servers or 1
        prefill = given_prefill(arguments)
        if prefill is None:
            lengths = calibration_lengths(inputs)
            prefill = await calibrate(self._client, prompts, lengths, self._show)
        self.ideal = Ideal(prefill, num_servers)

    async def run_point(self, point: LoadPoint, endless: Iterator[PlannedRequest]) -> RunSummary:
        """One load point; `endless` is for a closed loop. It is over when all answers are."""
        arguments, run, name = self._arguments, LoadRun(), self.endpoint.name
        async with shown(f"{name}, {point.label}" if name else point.label, run, self._client):
            if point.plan is None:
                limits = read_limits(arguments)
                await run_closed(self._client, endless, point.slots, limits, run)
            else:
                await run_open(self._client, point.plan.requests, run)
        return RunSummary(
            label=point.label,
            run=run,
            limits=read_service_limits(arguments),
            max_lag_ms=arguments.max_lag_ms,
            ideal=self.ideal,
            closed=point.plan is None,
            offered_per_s=None if point.plan is None else point.plan.offered_per_s,
            endpoint=name,
            usd_per_gpu_hour=self.endpoint.usd_per_gpu_hour,
        )

    def close(self) -> None:
        self._client.close()

    def _show(self, text: str) -> None:
        name = self.endpoint.name
        progress_line.show(f"{name}: {text}" if name else text)


def _fields(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    """Of the body: what all requests to this endpoint ask for."""
    usage = {"include_usage": True}
    if arguments.continuous_usage:
        usage["continuous_usage_stats"] = True
    return {
        "model": model,
        "stream": True,
        "temperature": arguments.temperature,
        "stream_options": usage,
        "ignore_eos": True if arguments.ignore_eos else None,
    }
