"""Tells the world of the gateway's requests: one span each, and the metrics."""

from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.records.receipt import Receipt
from services.gateway.owner.records.request_span import parent_of, request_span
from shared.telemetry import attributes as names
from shared.telemetry.attainment import Attainment
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.tracing import SpanSink, parse_traceparent


class MetricsObserver:
    """Told of every delivered token and every end; never waits."""

    def __init__(self, metrics: GatewayMetrics, sink: SpanSink, model: str) -> None:
        self._metrics = metrics
        self._sink = sink
        self._model = model

    def first_token(self, ttft_s: float) -> None:
        self._metrics.ttft.observe(ttft_s)
        self._metrics.attainment.first_token(ttft_s)

    def token_gaps(self, gap_s: float, num_tokens: int) -> None:
        """`num_tokens` tokens of one request arrived together, `gap_s` after the one before."""
        if num_tokens:
            self._metrics.gap.observe(gap_s)
        if num_tokens > 1:
            self._metrics.gap.observe(0.0, num_tokens - 1)

    @property
    def attainment(self) -> Attainment:
        return self._metrics.attainment

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
        self._sink.emit(request_span(request, receipt, self._model), parent_of(request), own)
        for epoch, _, span in receipt.own_spans():
            span.attributes.update({names.REQUEST_ID: receipt.rid, names.EPOCH: epoch})
            self._sink.emit(span, own)
