"""A collector of spans and metrics for tests: OTLP over HTTP, on loopback, in a thread."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from holdfast.sinks.traces import open_traces

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}


class Spanned:
    """A span as it came."""

    def __init__(self, span: Any, scope: str) -> None:
        self.name: str = span.name
        self.scope = scope
        self.kind = KINDS[span.kind]
        self.id: str = span.span_id.hex()
        self.parent: str = span.parent_span_id.hex()
        self.trace: str = span.trace_id.hex()
        self.links: list[str] = [link.span_id.hex() for link in span.links]
        self.events: list[str] = [event.name for event in span.events]
        self.failed = span.status.code == 2
        self.attributes: dict[str, Any] = {
            each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
        }

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name} {self.id} in {self.parent}>"


class Collector:
    """What came. `hangs`: it takes requests and never answers them."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.spans: list[Spanned] = []
        self.resources: list[dict[str, Any]] = []
        self.metrics: set[str] = set()
        self.hangs = hangs
        self.asked = threading.Event()
        self.released = threading.Event()

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics |= {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
            return
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            known = {
                each.key: str(getattr(each.value, each.value.WhichOneof("value")))
                for each in resource.resource.attributes
            }
            self.resources.append(known)
            for scope in resource.scope_spans:
                self.spans += [Spanned(span, scope.scope.name) for span in scope.spans]

    def of(self, kind: str, name: str) -> list[Spanned]:
        """Our spans by kind and name, in the order in which they ended."""
        return [span for span in self.spans if (span.kind, span.name, span.scope) == (kind, name, "holdfast")]

    def one(self, kind: str, name: str) -> Spanned:
        [span] = self.of(kind, name)
        return span

    def above(self, span: Spanned) -> Iterator[Spanned]:
        """A span, its parent, and so on."""
        by_id = {each.id: each for each in self.spans}
        here: Spanned | None = span
        while here is not None:
            yield here
            here = by_id.get(here.parent)

    def says(self, text: str) -> bool:
        return any(text.encode() in body for body in self.bodies)


@contextmanager
def collecting(*, hangs: bool = False) -> Generator[tuple[Collector, str]]:
    """A collector and its URL."""
    collector = Collector(hangs=hangs)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.asked.set()
            if collector.hangs:
                collector.released.wait(60)
                return
            collector.take(self.path, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # closing waits for them
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}"
    finally:
        collector.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def tracing(**settings: Any) -> Generator[Collector]:
    """A collector with all spans of the block, once it is left."""
    with collecting() as (collector, url):
        traces = open_traces(endpoint=url, **settings)
        try:
            yield collector
        finally:
            traces.close()
