"""One `baton bench serve` from the first question to the last answer."""

import argparse
import time
from collections.abc import Callable

from services.cli.bench.measure import progress_line
from services.cli.bench.serve.calibration import calibrate, calibration_lengths
from services.cli.bench.serve.client.load_client import LoadClient
from services.cli.bench.serve.endpoint import Endpoint, EndpointFacts, ordinary_ids
from services.cli.bench.serve.flags import given_prefill, read_limits, read_service_limits
from services.cli.bench.serve.load_loop import LoadRun, run_closed, run_open
from services.cli.bench.serve.load_points import (
    LoadPoint,
    TraceLoad,
    input_lengths,
    load_points,
    read_trace_load,
)
from services.cli.bench.serve.progress import shown
from services.cli.bench.serve.prompts import (
    WORDS,
    ChatPrompts,
    PromptSource,
    TokenPrompts,
    WordCost,
    message,
    safe_ids,
)
from services.cli.bench.serve.report.summary import Ideal, RunSummary
from services.cli.bench.serve.sample import RequestSample
from services.cli.bench.serve.workload import (
    Lengths,
    PlannedRequest,
    Planner,
    RequestTemplate,
    body_fields,
)
from shared.errors import BatonError, SettingsError

FEW_WORDS, MANY_WORDS = 8, 200
"""words of two chats, which tell what a word costs"""


class LoadSession:
    """Everything one run shares between its load points."""

    def __init__(
        self, arguments: argparse.Namespace, endpoint: Endpoint, facts: EndpointFacts
    ) -> None:
        self._arguments = arguments
        self._endpoint = endpoint
        self._facts = facts
        self._template = RequestTemplate(endpoint, facts.model, _fields(arguments, facts.model))
        self.trace: TraceLoad | None = None
        if arguments.trace is not None:
            self.trace = read_trace_load(arguments, facts.max_model_len)

    async def run(self, report: Callable[[RunSummary], None]) -> None:
        """Runs every load point; `report` gets each as it ends."""
        client = LoadClient(self._endpoint, self._arguments.timeout_s)
        try:
            prompts = await self._prompts(client)
            planner = self._planner(prompts)
            progress_line.show("making the requests")
            points = load_points(self._arguments, planner, self.trace)
            await self._warm_up(client, planner)
            ideal = await self._ideal(client, prompts, points)
            for point in points:
                report(await self._run_point(client, planner, point, ideal))
        finally:
            progress_line.clear()
            client.close()

    def _planner(self, prompts: PromptSource) -> Planner:
        arguments = self._arguments
        lengths = (
            Lengths.parse(arguments.input, "--input"),
            Lengths.parse(arguments.output, "--output"),
        )
        limit = self._facts.max_model_len
        if self.trace is None and limit is not None and lengths[0].high + lengths[1].high > limit:
            raise SettingsError(
                f"--input {arguments.input} and --output {arguments.output} do not fit into the "
                f"{limit} tokens of {self._facts.model}; ask for less"
            )
        return Planner(self._template, prompts, lengths, arguments.seed)

    async def _prompts(self, client: LoadClient) -> PromptSource:
        arguments = self._arguments
        if self._endpoint.kind == "chat":
            cost = await self._word_cost(client)
            return ChatPrompts(cost, arguments.seed, arguments.shared_prefix)
        ids = (
            safe_ids(arguments.vocab)
            if arguments.vocab is not None
            else ordinary_ids(self._endpoint, self._facts)
        )
        if ids is None:
            raise SettingsError(
                "the endpoint has no /tokenize to ask for ordinary token ids; give the size of "
                "its vocabulary with --vocab"
            )
        return TokenPrompts(ids, arguments.seed, arguments.shared_prefix)

    async def _word_cost(self, client: LoadClient) -> WordCost:
        counts = []
        for num_words in (FEW_WORDS, MANY_WORDS):
            words = (WORDS * (num_words // len(WORDS) + 1))[:num_words]
            wire = self._template.wire(message(" ".join(words)), 1)
            sample = await self._first_answer(client, PlannedRequest(0, 0.0, num_words, 1, wire))
            if sample.prompt_tokens is None:
                raise BatonError(
                    "the endpoint's answers carry no usage, so the length of a chat is unknown; "
                    "use --endpoint completions"
                )
            counts.append(sample.prompt_tokens)
        per_word = max((counts[1] - counts[0]) / (MANY_WORDS - FEW_WORDS), 0.01)
        return WordCost(per_word, max(counts[0] - FEW_WORDS * per_word, 0.0))

    async def _ideal(
        self, client: LoadClient, prompts: PromptSource, points: list[LoadPoint]
    ) -> Ideal | None:
        arguments, inputs = self._arguments, input_lengths(points)
        if arguments.no_ideal or not inputs:
            return None
        num_servers = arguments.ideal_servers or self._facts.num_prefill_servers or 1
        prefill = given_prefill(arguments)
        if prefill is None:
            lengths = calibration_lengths(inputs)
            prefill = await calibrate(client, self._template, prompts, lengths, progress_line.show)
        return Ideal(prefill, num_servers)

    async def _warm_up(self, client: LoadClient, planner: Planner) -> None:
        for number, planned in enumerate(planner.warm(self._arguments.warmup)):
            progress_line.show(f"warm-up {number + 1} of {self._arguments.warmup}")
            await self._first_answer(client, planned)

    async def _first_answer(self, client: LoadClient, planned: PlannedRequest) -> RequestSample:
        """Of a request before the run: one that fails tells what is wrong with them all."""
        sample = await client.send(planned, time.monotonic())
        if not sample.ok and sample.error != "empty":
            where = f"{self._endpoint.url}{self._endpoint.path}"
            doubt = self._facts.model_doubt
            raise BatonError(f"{where} failed: {sample.error}: {sample.error_text}{doubt}")
        return sample

    async def _run_point(
        self, client: LoadClient, planner: Planner, point: LoadPoint, ideal: Ideal | None
    ) -> RunSummary:
        arguments, run = self._arguments, LoadRun()
        async with shown(point.label, run, client):
            if point.plan is None:
                limits = read_limits(arguments)
                await run_closed(client, planner.endless(), point.slots, limits, run)
            else:
                await run_open(client, point.plan.requests, run)
        return RunSummary(
            label=point.label,
            run=run,
            limits=read_service_limits(arguments),
            max_lag_ms=arguments.max_lag_ms,
            ideal=ideal,
            closed=point.plan is None,
            offered_per_s=None if point.plan is None else point.plan.offered_per_s,
        )


def _fields(arguments: argparse.Namespace, model: str) -> tuple[tuple[str, bytes], ...]:
    usage = {"include_usage": True}
    if arguments.continuous_usage:
        usage["continuous_usage_stats"] = True
    return body_fields(
        model,
        {
            "temperature": arguments.temperature,
            "stream_options": usage,
            "ignore_eos": True if arguments.ignore_eos else None,
        },
    )
