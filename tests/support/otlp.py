"""A receiver of OpenTelemetry's protocol, as a collector has: it decodes what exporters send by HTTP.

with receiver() as received:
    ...                                  # a process with received.environment
    wait_until(lambda: received.spans(kind="CONSUMER"))
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class Span:
    """A span as it came over the wire. `links`: (trace, span)."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    failed: bool
    events: list[str]


@dataclass
class Received:
    """What has come so far."""

    endpoint: str
    _spans: list[Span] = field(default_factory=list)
    _metrics: dict[tuple[str, str, frozenset[tuple[str, Any]]], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def environment(self, service: str) -> Mapping[str, str]:
        """What lets a process under `opentelemetry-instrument` send everything here."""
        return {
            "OTEL_SERVICE_NAME": service,
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
        }

    def spans(self, **wanted: Any) -> list[Span]:
        """Those whose fields are these, in the order in which they came."""
        with self._lock:
            return [span for span in self._spans if all(getattr(span, name) == value for name, value in wanted.items())]

    def metric(self, name: str, service: str, **labels: Any) -> float | None:
        """The last value with these attributes, whose dots are underscores here."""
        with self._lock:
            for (found, of, attributes), value in self._metrics.items():
                plain = {key.rpartition(".")[2]: value for key, value in attributes}
                if (found, of) == (name, service) and labels.items() <= plain.items():
                    return value
        return None

    def take_spans(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for resource in request.resource_spans:
                service = _attributes(resource.resource)["service.name"]
                for scope in resource.scope_spans:
                    self._spans += [_span(service, span) for span in scope.spans]

    def take_metrics(self, body: bytes) -> None:
        request = ExportMetricsServiceRequest.FromString(body)
        with self._lock:
            for resource in request.resource_metrics:
                service = _attributes(resource.resource)["service.name"]
                for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    for point in metric.sum.data_points:
                        key = metric.name, service, frozenset(_attributes(point).items())
                        self._metrics[key] = point.as_double or point.as_int


def _span(service: str, span: Message) -> Span:
    return Span(
        service=service,
        name=span.name,
        kind=Message.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        attributes=_attributes(span),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        events=[event.name for event in span.events],
    )


def _attributes(of: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in of.attributes}


@contextmanager
def receiver() -> Generator[Received]:
    """Listens on a free port meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            (received.take_metrics if self.path == "/v1/metrics" else received.take_spans)(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Received(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
