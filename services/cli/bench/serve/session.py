"""One `baton bench serve` from the first question to the last answer."""

import argparse
from collections.abc import Callable, Sequence
from itertools import tee

from services.cli.bench.measure import progress_line
from services.cli.bench.serve.endpoint import EndpointFacts, ordinary_ids
from services.cli.bench.serve.load_points import (
    LoadPoint,
    TraceLoad,
    input_lengths,
    load_points,
    read_trace_load,
)
from services.cli.bench.serve.loaded_endpoint import LoadedEndpoint
from services.cli.bench.serve.prompts import (
    WORDS,
    ChatPrompts,
    PromptSource,
    TokenPrompts,
    WordCost,
    message,
    safe_ids,
)
from services.cli.bench.serve.report.summary import RunSummary
from services.cli.bench.serve.workload import Lengths, PlannedRequest, Planner
from shared.errors import BatonError, SettingsError

FEW_WORDS, MANY_WORDS = 8, 200
"""words of two chats, which tell what a word costs"""


class LoadSession:
    """The same requests for each endpoint: everything is planned once, then sent in turns."""

    def __init__(self, arguments: argparse.Namespace, endpoints: Sequence[LoadedEndpoint]) -> None:
        self._arguments = arguments
        self._endpoints = endpoints
        self._shortest = _shortest([one.facts for one in endpoints])
        self.trace: TraceLoad | None = None
        if arguments.trace is not None:
            self.trace = read_trace_load(arguments, self._shortest.max_model_len)

    async def run(self, report: Callable[[Sequence[RunSummary]], None]) -> None:
        """Runs every load point; `report` gets each as it ends, a summary per endpoint."""
        try:
            prompts = await self._prompts()
            planner = self._planner(prompts)
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

    def _planner(self, prompts: PromptSource) -> Planner:
        arguments, limit = self._arguments, self._shortest.max_model_len
        lengths = (
            Lengths.parse(arguments.input, "--input"),
            Lengths.parse(arguments.output, "--output"),
        )
        if self.trace is None and limit is not None and lengths[0].high + lengths[1].high > limit:
            raise SettingsError(
                f"--input {arguments.input} and --output {arguments.output} do not fit into the "
                f"{limit} tokens of {self._shortest.model}; ask for less"
            )
        return Planner(prompts, lengths, arguments.seed)

    async def _prompts(self) -> PromptSource:
        arguments, first = self._arguments, self._endpoints[0]
        if first.endpoint.kind == "chat":
            cost = await _word_cost(first)
            return ChatPrompts(cost, arguments.seed, arguments.shared_prefix)
        ids: Sequence[int]
        if arguments.vocab is not None:
            ids = safe_ids(arguments.vocab)
        else:
            ids = _common_ids(self._endpoints)
        return TokenPrompts(ids, arguments.seed, arguments.shared_prefix)


def _shortest(facts: Sequence[EndpointFacts]) -> EndpointFacts:
    """Of the endpoint whose model holds the fewest tokens, as far as they say."""
    return min(facts, key=lambda one: float(one.max_model_len or "inf"))


def _common_ids(endpoints: Sequence[LoadedEndpoint]) -> Sequence[int]:
    """Ordinary ids of the smaller vocabulary: the other one has them too."""
    return min((_own_ids(one) for one in endpoints), key=max)


def _own_ids(one: LoadedEndpoint) -> Sequence[int]:
    ids = ordinary_ids(one.endpoint, one.facts)
    if ids is None:
        raise SettingsError(
            f"{one.endpoint.url} has no /tokenize to ask for ordinary token ids; give the size of "
            "the vocabulary with --vocab, of two the smaller"
        )
    return ids


async def _word_cost(endpoint: LoadedEndpoint) -> WordCost:
    counts = []
    for num_words in (FEW_WORDS, MANY_WORDS):
        words = (WORDS * (num_words // len(WORDS) + 1))[:num_words]
        prompt = message(" ".join(words))
        sample = await endpoint.first_answer(PlannedRequest(0, 0.0, num_words, 1, prompt))
        if sample.prompt_tokens is None:
            raise BatonError(
                "the endpoint's answers carry no usage, so the length of a chat is unknown; "
                "use --endpoint completions"
            )
        counts.append(sample.prompt_tokens)
    per_word = max((counts[1] - counts[0]) / (MANY_WORDS - FEW_WORDS), 0.01)
    return WordCost(per_word, max(counts[0] - FEW_WORDS * per_word, 0.0))
