"""An OTLP/HTTP collector on loopback: keeps every span it is sent."""

import http.server
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it arrived; ids in hex, `parent` empty for a root."""

    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]
    events: tuple[str, ...]
    resource: dict[str, Any]


class Receiver:
    """`url` is the endpoint to configure."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[ReceivedSpan] = []
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        with self._lock:
            self.spans += _spans(ExportTraceServiceRequest.FromString(body))

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        with self._lock:
            return [span for span in self.spans if span.trace == trace_id]

    def wait(self, trace_id: str, names: set[str], limit_s: float = 10.0) -> list[ReceivedSpan]:
        """The trace once it has spans of all these names; spans travel in batches."""
        deadline_s = time.monotonic() + limit_s
        while not names <= {span.name for span in self.trace(trace_id)}:
            assert time.monotonic() < deadline_s, self.trace(trace_id)
            time.sleep(0.02)
        return self.trace(trace_id)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A collector on a free port, in a thread."""

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self.rfile.read(int(self.headers["content-length"])))
            assert self.path == "/v1/traces"
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for span in (span for scope in group.scope_spans for span in scope.spans):
            yield ReceivedSpan(
                name=span.name,
                trace=span.trace_id.hex(),
                id=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                start_ns=span.start_time_unix_nano,
                end_ns=span.end_time_unix_nano,
                is_error=span.status.code == 2,
                attributes=_attributes(span.attributes),
                events=tuple(event.name for event in span.events),
                resource=resource,
            )


def _attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
