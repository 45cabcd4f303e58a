"""The OpenAPI document of the server: what FastAPI finds out by itself, completed by what it cannot know."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

from ferrule.server import call_routes
from ferrule.server.problems import PROBLEM_TYPE
from ferrule.server.response_schemas import REF, RESPONSES, make_components, make_schema

CALL_PATH: Final = "/v1/tools/{name}/call"
PUBLIC_PATHS: Final = ("/healthz", "/readyz")
_PROBLEM: Final[dict[str, Any]] = {
    "title": "Problem",
    "description": "RFC 9457: what happened, and what to do.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
_CALL_OPERATION: Final[dict[str, Any]] = {
    "tags": ["calls"],
    "summary": "Call a tool",
    "operationId": "call_tool",
    "description": "A call that was made is answered with 200, also when the tool failed: see `is_success`. With the "
    "header `Idempotency-Key`, a repeated request gets the first response.",
    "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
    "requestBody": {"content": {"application/json": {"schema": {"$ref": f"{REF}CallRequest"}}}},
    "responses": {
        "200": {"description": "The result of the call."},
        "404": {"description": "There is no such tool, or the client may not call it."},
        "422": {"description": "The arguments are not valid."},
        "428": {"description": "A person must approve the call; repeat it with the `approval_id`."},
        "429": {"description": "There are too many calls."},
    },
}
_MEDIA_TYPES: Final = {
    "/metrics": ["text/plain"],
    "/v1/events": ["text/event-stream"],
    "/v1/calls/{call_id}/artifact": ["application/octet-stream"],
    "/v1/ask": ["application/json", "text/event-stream"],
    "/v1/runs/{run_id}/resume": ["application/json", "text/event-stream"],
    "/v1/chat/completions": ["application/json", "text/event-stream"],
    "/v1/responses": ["application/json", "text/event-stream"],
    CALL_PATH: ["application/json", "text/event-stream"],
}
"""Of successful responses that are not only JSON."""


def complete_document(app: FastAPI) -> None:
    """Let the application describe its plain route, its errors, its media types and its tokens too."""
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(make_document())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    document["paths"][CALL_PATH] = {"post": _CALL_OPERATION}
    components = document.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    schemas |= make_components()
    schemas["CallRequest"] = call_routes.CallRequest.model_json_schema(ref_template=f"{REF}{{model}}")
    schemas["Problem"] = _PROBLEM
    for name in ("HTTPValidationError", "ValidationError"):  # of FastAPI, which answers with problems here
        schemas.pop(name, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete_operation(method.upper(), path, operation)
    return document


def _complete_operation(method: str, path: str, operation: dict[str, Any]) -> None:
    problem = {"content": {PROBLEM_TYPE: {"schema": {"$ref": f"{REF}Problem"}}}}
    if path in PUBLIC_PATHS:
        operation["security"] = []
    for status, response in operation["responses"].items():
        if not status.startswith("2"):
            response.update(problem)
        else:
            fields = RESPONSES.get(f"{method} {path}")
            json = {"type": "string"} if fields is None else make_schema(fields)
            response["content"] = {
                each: {"schema": json if each == "application/json" else {"type": "string"}}
                for each in _MEDIA_TYPES.get(path, ["application/json"])
            }
    operation["responses"]["default"] = {"description": "The request was not fulfilled.", **problem}
