"""What the gateway tells the world of its requests: one span each, and the metrics.

A request's span is the parent of everything workers report for it, so its ids exist from the
start and the span itself is written at the end.
"""

import os

from services.gateway.generation import GenerateRequest
from services.gateway.receipts import Receipt
from shared.protocol import Span
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

    def token_gap(self, gap_s: float) -> None:
        """Seconds between two frames with tokens of one request."""
        self._metrics.gap.observe(gap_s)

    def ended(self, request: GenerateRequest, receipt: Receipt) -> None:
        """Step 9: the request has its one outcome."""
        metrics = self._metrics
        metrics.outcomes.labels(receipt.outcome or "", receipt.code).inc()
        metrics.retries.inc(max(0, len(receipt.attempts) - 1))
        metrics.prompt_tokens.inc(receipt.prompt_tokens)
        metrics.generation_tokens.inc(receipt.completion_tokens)
        metrics.cached_tokens.inc(receipt.cached_tokens)
        metrics.e2e.observe((receipt.ended_ns - receipt.received_ns) / 1e9)
        metrics.observe_stages(receipt.critical_path_ms())
        own = parse_traceparent(request.traceparent)
        if own is not None:
            self._sink.emit(self._span(request, receipt), parent_of(request), own)

    def _span(self, request: GenerateRequest, receipt: Receipt) -> Span:
        sampling = request.sampling
        attributes: dict[str, str | int | float | bool] = {
            names.OPERATION: _OPERATIONS[request.endpoint],
            names.PROVIDER: "baton",
            names.REQUEST_MODEL: self._model,
            names.RESPONSE_MODEL: self._model,
            names.RESPONSE_ID: receipt.rid,
            names.REQUEST_MAX_TOKENS: sampling.max_tokens,
            names.REQUEST_TEMPERATURE: sampling.temperature,
            names.REQUEST_TOP_P: sampling.top_p,
            names.REQUEST_TOP_K: sampling.top_k,
            names.REQUEST_SEED: sampling.seed,
            names.INPUT_TOKENS: receipt.prompt_tokens,
            names.OUTPUT_TOKENS: receipt.completion_tokens,
            names.CACHED_INPUT_TOKENS: receipt.cached_tokens,
        }
        if receipt.first_token_ns:
            since_ns = receipt.first_token_ns - receipt.received_ns
            attributes[names.TIME_TO_FIRST_CHUNK] = since_ns / 1e9
            attributes[f"event.{names.EVENT_FIRST_TOKEN}_ns"] = receipt.first_token_ns
        if receipt.code:
            attributes[names.ERROR_TYPE] = receipt.code
        return Span(
            names.SPAN_REQUEST, receipt.received_ns, receipt.ended_ns, os.getpid(), attributes
        )


def parent_of(request: GenerateRequest) -> TraceContext | None:
    """The client's span, if it sent one."""
    return parse_traceparent(request.client_traceparent)
