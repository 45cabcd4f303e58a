"""A collector for OTLP over HTTP, on loopback."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.http_servers import Answer, Request, serve_http_in_thread


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as the collector got it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """The spans received so far."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[ReceivedSpan] = []

    def find(self, name: str) -> ReceivedSpan:
        (span,) = [each for each in self.spans if each.name == name]
        return span

    def ancestors(self, span: ReceivedSpan) -> list[str]:
        """The names of the spans that a span is part of, the nearest first."""
        by_id = {each.span_id: each for each in self.spans}
        names = []
        while (parent := by_id.get(span.parent_id)) is not None:
            names.append(parent.name)
            span = parent
        return names

    def add(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            facts = _read_attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [
                    ReceivedSpan(
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        is_error=span.status.code == 2,
                        attributes=_read_attributes(span.attributes),
                        resource=facts,
                    )
                    for span in scope.spans
                ]


def _read_attributes(attributes: Any) -> dict[str, Any]:
    return {each.key: _read_value(each.value) for each in attributes}


def _read_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_read_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def run_collector() -> Iterator[Collector]:
    collector = Collector()

    def answer(request: Request) -> Answer:
        assert request.path == "/v1/traces"
        collector.add(request.body)
        content = ExportTraceServiceResponse().SerializeToString()
        return Answer(200, {"Content-Type": "application/x-protobuf"}, content)

    with serve_http_in_thread(answer) as server:
        collector.url = server.url
        yield collector
