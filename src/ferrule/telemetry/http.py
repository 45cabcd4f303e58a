"""The span of an HTTP request: it continues the trace of the client that sent `traceparent`."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.telemetry.tracing import Tracing

_UNTRACED_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class TracedApp:
    """An application whose requests are spans."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app, self._tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                self._tracing.close()
        elif scope["type"] != "http" or scope["path"] in _UNTRACED_PATHS:
            await self._app(scope, receive, send)
        else:
            await self._trace_request(scope, receive, send)

    async def _trace_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind, StatusCode

        method: str = scope["method"]
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        attributes = {"http.request.method": method, "url.path": scope["path"], "url.scheme": scope["scheme"]}
        outer = propagate.extract(carrier)
        start = self._tracing.tracer.start_as_current_span
        with start(method, context=outer, kind=SpanKind.SERVER, attributes=attributes) as span:

            async def send_with_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(StatusCode.ERROR)
                await send(message)

            await self._app(scope, receive, send_with_status)
            if "endpoint" in scope:
                route = find_route(scope)
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)


def find_route(scope: Scope) -> str:
    """Return the path with the names of its parameters, of which there are few, instead of their values."""
    names = {str(value): f"{{{name}}}" for name, value in scope.get("path_params", {}).items()}
    return "/".join(names.get(part, part) for part in scope["path"].split("/"))
