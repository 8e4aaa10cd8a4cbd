"""Where a process sends its spans. OpenTelemetry is imported only when an endpoint is set."""

from collections.abc import Mapping

from shared.telemetry.tracing import NoSpans, SpanSink


def build_span_sink(endpoint: str, service: str, resource: Mapping[str, str]) -> SpanSink:
    """An OTLP/HTTP exporter, or NoSpans when `endpoint` is empty."""
    if not endpoint:
        return NoSpans()
    from shared.telemetry.otlp import OtlpSpans  # noqa: PLC0415 -- costs 30 MB, only if asked for

    return OtlpSpans(endpoint, service, resource)
