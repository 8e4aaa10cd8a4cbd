"""Finished spans to an OTLP/HTTP collector, in batches, off the event loop."""

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from shared.protocol import Span
from shared.telemetry import attributes as names
from shared.telemetry.tracing import TraceContext, new_trace

_EXPORT_DELAY_MS = 200
_EXPORT_TIMEOUT_S = 5
_EVENT_PREFIX = "event."
_EVENT_SUFFIX = "_ns"


class OtlpSpans:
    """A SpanSink. `endpoint` is the collector's base URL; `/v1/traces` is appended."""

    def __init__(self, endpoint: str, service: str, resource: Mapping[str, str]) -> None:
        self._resource = Resource.create({"service.name": service, **resource})
        self._scope = InstrumentationScope("baton")
        exporter = OTLPSpanExporter(
            endpoint=endpoint.rstrip("/") + "/v1/traces", timeout=_EXPORT_TIMEOUT_S
        )
        self._processor = BatchSpanProcessor(exporter, schedule_delay_millis=_EXPORT_DELAY_MS)

    def emit(
        self, span: Span, parent: TraceContext | None, own: TraceContext | None = None
    ) -> None:
        context = own or (parent or new_trace()).child()
        plain = {key: v for key, v in span.attributes.items() if not _is_event(key)}
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_span_context(context),
                parent=_span_context(parent) if parent else None,
                resource=self._resource,
                attributes={**plain, names.PID: span.pid},
                events=[
                    Event(
                        key.removeprefix(_EVENT_PREFIX).removesuffix(_EVENT_SUFFIX),
                        timestamp=int(span.attributes[key]),
                    )
                    for key in span.attributes
                    if _is_event(key)
                ],
                kind=SpanKind.SERVER if own else SpanKind.INTERNAL,
                start_time=span.start_ns,
                end_time=span.end_ns,
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        self._processor.force_flush(2_000)
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _is_event(key: str) -> bool:
    return key.startswith(_EVENT_PREFIX) and key.endswith(_EVENT_SUFFIX)


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(context.flags, 16) | TraceFlags.SAMPLED),
    )
