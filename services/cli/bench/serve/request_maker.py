"""Makes the requests of a run: what the endpoints told once, then prompts and plans by seed."""

import argparse
from collections.abc import Callable, Sequence

from services.cli.bench.serve.endpoint import EndpointFacts, ordinary_ids
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
from services.cli.bench.serve.workload import Lengths, PlannedRequest, Planner
from shared.errors import BatonError, SettingsError

FEW_WORDS, MANY_WORDS = 8, 200
"""words of two chats, which tell what a word costs"""


class RequestMaker:
    """The same requests for each endpoint."""

    def __init__(
        self,
        lengths: tuple[Lengths, Lengths],
        prompts: Callable[[int], PromptSource],
        max_model_len: int | None,
    ) -> None:
        """`lengths`: of input and output; `prompts` takes a seed."""
        self.lengths = lengths
        self.prompts = prompts
        self.max_model_len = max_model_len

    def planner(self, prompts: PromptSource, seed: int) -> Planner:
        return Planner(prompts, self.lengths, seed)


async def request_maker(
    arguments: argparse.Namespace, endpoints: Sequence[LoadedEndpoint]
) -> RequestMaker:
    """SettingsError where requests as long as the flags say fit into none of the models."""
    shortest = shortest_model([one.facts for one in endpoints])
    lengths = (
        Lengths.parse(arguments.input, "--input"),
        Lengths.parse(arguments.output, "--output"),
    )
    limit = shortest.max_model_len
    if arguments.trace is None and limit is not None and lengths[0].high + lengths[1].high > limit:
        raise SettingsError(
            f"--input {arguments.input} and --output {arguments.output} do not fit into the "
            f"{limit} tokens of {shortest.model}; ask for less"
        )
    return RequestMaker(lengths, await _prompts(arguments, endpoints), limit)


def shortest_model(facts: Sequence[EndpointFacts]) -> EndpointFacts:
    """Of the endpoint whose model holds the fewest tokens, as far as they say."""
    return min(facts, key=lambda one: float(one.max_model_len or "inf"))


async def _prompts(
    arguments: argparse.Namespace, endpoints: Sequence[LoadedEndpoint]
) -> Callable[[int], PromptSource]:
    num_shared = arguments.shared_prefix
    if endpoints[0].endpoint.kind == "chat":
        cost = await _word_cost(endpoints[0])
        return lambda seed: ChatPrompts(cost, seed, num_shared)
    ids: Sequence[int]
    ids = safe_ids(arguments.vocab) if arguments.vocab is not None else _common_ids(endpoints)
    return lambda seed: TokenPrompts(ids, seed, num_shared)


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
