"""What the gateway tells the world of its requests: one span each, and the metrics.

A request's span is the parent of everything workers report for it, so its ids exist from the
start and the span itself is written at the end.
"""

import os

from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.receipts import Receipt
from shared.protocol import Span, SpanEvent
from shared.telemetry import attributes as names
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.tracing import SpanSink, TraceContext, new_trace, parse_traceparent

_OPERATIONS = {"chat": "chat", "text": "text_completion"}


def request_trace(client_header: str | None) -> TraceContext:
    """The context of a new request's own span: in the client's trace, or in a fresh one."""
    parent = parse_traceparent(client_header)
    return parent.child() if parent is not None else new_trace()


class Observation:
    """Told of every delivered token and every end; never waits."""

    def __init__(self, metrics: GatewayMetrics, sink: SpanSink, model: str) -> None:
        self._metrics = metrics
        self._sink = sink
        self._model = model

    def first_token(self, receipt: Receipt) -> None:
        self._metrics.ttft.observe((receipt.first_token_ns - receipt.received_ns) / 1e9)

    def token_gaps(self, gap_s: float, num_tokens: int) -> None:
        """So many tokens of one request arrived together, that long after the one before."""
        if num_tokens:
            self._metrics.gap.observe(gap_s)
        if num_tokens > 1:
            self._metrics.gap.observe(0.0, num_tokens - 1)

    def ended(self, request: GenerateRequest, receipt: Receipt) -> None:
        """Step 9: the request has its one outcome."""
        metrics = self._metrics
        metrics.outcomes.labels(receipt.outcome or "").inc()
        if receipt.outcome == "failed":
            metrics.failures.labels(receipt.code).inc()
        metrics.generation_tokens.inc(receipt.completion_tokens)
        metrics.e2e.observe((receipt.ended_ns - receipt.received_ns) / 1e9)
        if receipt.first_token_ns:
            metrics.observe_stages(receipt.critical_path_ms())
        own = parse_traceparent(request.traceparent)
        if own is None:
            return
        self._sink.emit(self._span(request, receipt), parent_of(request), own)
        for epoch, _, span in receipt.own_spans():
            span.attributes.update({names.REQUEST_ID: receipt.rid, names.EPOCH: epoch})
            self._sink.emit(span, own)

    def _span(self, request: GenerateRequest, receipt: Receipt) -> Span:
        sampling = request.sampling
        attributes: dict[str, str | int | float | bool] = {
            names.OPERATION: _OPERATIONS[request.endpoint],
            names.PROVIDER: "baton",
            names.REQUEST_MODEL: self._model,
            names.RESPONSE_MODEL: self._model,
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
            since_ns = receipt.first_token_ns - receipt.received_ns
            attributes[names.TIME_TO_FIRST_CHUNK] = since_ns / 1e9
            events = (SpanEvent(names.EVENT_FIRST_TOKEN, receipt.first_token_ns),)
        if receipt.outcome == "failed":
            attributes[names.ERROR_TYPE] = receipt.code
        elif receipt.outcome == "done":
            attributes[names.RESPONSE_FINISH_REASONS] = receipt.code
        times = (receipt.received_ns, receipt.ended_ns)
        return Span(names.SPAN_REQUEST, *times, os.getpid(), attributes, events)


def parent_of(request: GenerateRequest) -> TraceContext | None:
    """The client's span, if it sent one."""
    return parse_traceparent(request.client_traceparent)
