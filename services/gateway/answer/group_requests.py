"""The requests that the choices of one HTTP request are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.gateway.http.request_id import fresh_id
from services.gateway.owner.generation import Endpoint, GenerateRequest, Group
from services.gateway.owner.records.request_span import request_trace
from services.gateway.prompt.prepared import PreparedRequest
from shared.protocol import DEFAULT_PRIORITY
from shared.state.records import ClientKey
from shared.text.choice_seed import choice_seed


@dataclass(frozen=True)
class HttpRequest:
    """What its choices have in common."""

    rid: str
    tenant: str
    endpoint: Endpoint
    timeout_s: float
    """what is left of its time"""
    limit_s: float
    """all of its time, from its first byte on"""
    client_traceparent: str | None
    received_ns: int
    client_key: ClientKey | None = None
    max_live: int = 0
    """live requests of its tenant, this one included; 0: no limit"""
    priority: int = DEFAULT_PRIORITY
    weight: int = 1
    """of its tenant"""


def choice_requests(http: HttpRequest, prepared: PreparedRequest) -> Sequence[GenerateRequest]:
    """One per prompt and choice, in the order of the answer's indexes. A lone choice has the
    HTTP request's id, those of a group have their own."""
    group = _group(http, prepared)
    sampling, n = prepared.sampling, prepared.num_choices
    trace = request_trace(http.client_traceparent)
    places = [(prompt, at) for prompt in prepared.prompts for at in range(n)]
    return [
        GenerateRequest(
            rid=http.rid if group is None else fresh_id(),
            tenant=http.tenant,
            endpoint=http.endpoint,
            prompt_ids=prompt.token_ids,
            sampling=replace(
                sampling, max_tokens=prompt.max_tokens, seed=choice_seed(sampling.seed, at)
            ),
            timeout_s=http.timeout_s,
            limit_s=http.limit_s,
            traceparent=(trace.child() if index else trace).traceparent,
            client_traceparent=http.client_traceparent,
            received_ns=http.received_ns,
            client_key=http.client_key,
            max_live=http.max_live,
            prompt_logprobs=prepared.scored_top,
            has_stops=bool(prepared.stop),
            priority=http.priority,
            weight=http.weight,
            block_hashes=prompt.block_hashes,
            group=group,
            choice=index,
            prompt=index // n,
            grammar_param=prepared.grammar_param,
        )
        for index, (prompt, at) in enumerate(places)
    ]


def _group(http: HttpRequest, prepared: PreparedRequest) -> Group | None:
    num_choices = len(prepared.prompts) * prepared.num_choices
    if num_choices == 1:
        return None
    num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prepared.prompts)
    return Group(http.rid, num_choices, num_prompt_tokens)
