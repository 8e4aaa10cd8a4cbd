"""A request's own span: the parent of everything workers report for it. So its ids exist from the
start, and the span itself is written at the end."""

import os

from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.records.receipt import Receipt
from shared.message_parts.span import Span, SpanEvent
from shared.telemetry import attributes as names
from shared.telemetry.tracing import TraceContext, new_trace, parse_traceparent

_OPERATIONS = {"chat": "chat", "text": "text_completion"}


def request_trace(client_header: str | None) -> TraceContext:
    """The context of a new request's own span: in the client's trace, or in a fresh one."""
    parent = parse_traceparent(client_header)
    return parent.child() if parent is not None else new_trace()


def parent_of(request: GenerateRequest) -> TraceContext | None:
    """The client's span, if it sent one."""
    return parse_traceparent(request.client_traceparent)


def request_span(request: GenerateRequest, receipt: Receipt, model: str) -> Span:
    """The span of a request that has ended."""
    sampling = request.sampling
    attributes: dict[str, str | int | float | bool] = {
        names.OPERATION: _OPERATIONS[request.endpoint],
        names.PROVIDER: "baton",
        names.REQUEST_MODEL: model,
        names.RESPONSE_MODEL: model,
        names.RESPONSE_ID: receipt.rid,
        names.REQUEST_ID: receipt.rid,
        names.NUM_ATTEMPTS: len(receipt.attempts),
        names.REQUEST_MAX_TOKENS: sampling.max_tokens,
        names.REQUEST_TEMPERATURE: sampling.temperature,
        names.REQUEST_TOP_P: sampling.top_p,
        names.REQUEST_TOP_K: sampling.top_k,
        names.REQUEST_SEED: sampling.seed,
        names.INPUT_TOKENS: receipt.prompt_tokens,
        names.OUTPUT_TOKENS: receipt.completion_tokens,
        names.CACHED_INPUT_TOKENS: receipt.cached_tokens,
    }
    events: tuple[SpanEvent, ...] = ()
    if receipt.first_token_ns:
        attributes[names.TIME_TO_FIRST_CHUNK] = receipt.ttft_ns / 1e9
        events = (SpanEvent(names.EVENT_FIRST_TOKEN, receipt.first_token_ns),)
    if receipt.outcome == "failed":
        attributes[names.ERROR_TYPE] = receipt.code
    elif receipt.outcome == "done":
        attributes[names.RESPONSE_FINISH_REASONS] = receipt.code
    times = (receipt.received_ns, receipt.ended_ns)
    return Span(names.SPAN_REQUEST, *times, os.getpid(), attributes, events)
