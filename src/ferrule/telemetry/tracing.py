"""Traces for OpenTelemetry: a question is one trace, with spans for plans, agents, models and tools.

The names follow OpenTelemetry's conventions for generative AI:
`invoke_workflow > plan > invoke_agent > chat | execute_tool`. Each span is current while its work runs, so MCP clients
and servers (`_meta.traceparent`) and HTTP requests of tools pass it on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.engine import ToolEngine
from ferrule.errors import MissingExtra
from ferrule.http.client import trace_headers
from ferrule.telemetry.attributes import SpanDescription

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from ferrule.config import TelemetrySection

EXPORT_TIMEOUT: Final = 5.0
"""Seconds that a collector has for one batch, also when the process ends. `OTEL_*` variables may give it more."""
_ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TIMEOUT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
_OPERATIONS: Final = {
    ToolEngineEventType.QUESTION_STARTED: ToolEngineEventType.QUESTION_ENDED,
    ToolEngineEventType.PLANNING_STARTED: ToolEngineEventType.PLANNING_ENDED,
    ToolEngineEventType.AGENT_STARTED: ToolEngineEventType.AGENT_ENDED,
    ToolEngineEventType.MODEL_STARTED: ToolEngineEventType.MODEL_ENDED,
    ToolEngineEventType.BEFORE_TOOL_CALL: ToolEngineEventType.AFTER_TOOL_CALL,
}


def start_tracing(section: TelemetrySection, engine: ToolEngine) -> Tracing | None:
    """Send the traces of an engine where `[telemetry]` or `OTEL_*` variables say; None if they say nothing."""
    if section.endpoint is None and not any(os.environ.get(name) for name in _ENDPOINT_VARIABLES):
        return None
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    return Tracing(engine, _make_provider(section), section)


def _make_provider(section: TelemetrySection) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise MissingExtra(str(error.name), "telemetry") from None
    from ferrule import __version__

    name = os.environ.get("OTEL_SERVICE_NAME") or section.service_name
    endpoint = None if section.endpoint is None else section.endpoint.rstrip("/") + "/v1/traces"
    provider = TracerProvider(
        resource=Resource.create({"service.name": name, "service.version": __version__}),
        sampler=None if section.sample_ratio is None else ParentBasedTraceIdRatio(section.sample_ratio),
    )
    timeout = None if any(os.environ.get(name) for name in _TIMEOUT_VARIABLES) else EXPORT_TIMEOUT
    exporter = OTLPSpanExporter(endpoint=endpoint, headers=section.headers or None, timeout=timeout)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Tracing:
    """Makes spans of the events of an engine."""

    def __init__(self, engine: ToolEngine, provider: TracerProvider, section: TelemetrySection) -> None:
        from ferrule import __version__

        self._provider = provider
        self.tracer: Tracer = provider.get_tracer("ferrule", __version__)
        self._describe = SpanDescription(
            engine.store.redaction,
            has_content=section.content,
            max_content=section.max_content,
            has_openinference=section.openinference,
        )
        self._open: dict[str, tuple[Span, Context, Mapping[str, str]]] = {}
        """The spans that have not ended, with what was current before, by the id of a call or operation."""
        types = {*_OPERATIONS, *_OPERATIONS.values()}
        self._unsubscribe = engine.subscribe(self._on_event, types)

    def close(self) -> None:
        """Send the spans so far, and make no more."""
        self._unsubscribe()
        self._provider.shutdown()

    def _on_event(self, event: ToolEngineEvent) -> None:
        key = event.call_id or event.data["operation_id"]
        if event.event_type in _OPERATIONS:
            self._start(key, event)
        elif key in self._open:
            self._end(key, event)

    def _start(self, key: str, event: ToolEngineEvent) -> None:
        from opentelemetry import context, propagate, trace

        name, is_request, attributes = self._describe.start(event)
        kind = trace.SpanKind.CLIENT if is_request else trace.SpanKind.INTERNAL
        span = self.tracer.start_span(name, kind=kind, attributes=attributes, start_time=int(event.at * 1e9))
        self._open[key] = (span, context.get_current(), trace_headers.get())
        context.attach(trace.set_span_in_context(span))
        headers: dict[str, str] = {}
        propagate.inject(headers)
        trace_headers.set(headers)

    def _end(self, key: str, event: ToolEngineEvent) -> None:
        from opentelemetry import context
        from opentelemetry.trace import StatusCode

        span, outer, headers = self._open.pop(key)
        span.set_attributes(self._describe.end(event))
        if event.error_type is not None:
            span.set_attribute("error.type", event.error_type)
            span.set_status(StatusCode.ERROR, self._describe.cut(event.error or ""))
        span.end(int(event.at * 1e9))
        context.attach(outer)  # not `detach`: a call that is closed by another task has another context
        trace_headers.set(headers)
