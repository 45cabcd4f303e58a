"""The OpenAPI document of the server: what FastAPI finds out by itself, completed by what it cannot know.

Routes return responses that FastAPI does not look into, so that what they contain is written here, as fields and their
types. A type is one of `TYPES`, a name of `OBJECTS`, or a list `[…]` or a map `{…}` of these; `?` stands for null, too.
Objects may get further fields.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import TypeAdapter

from ferrule.concurrency.config import ConcurrencyMetrics
from ferrule.core.permission import Decision
from ferrule.memory.conversation import Turn
from ferrule.memory.failure_history import FailurePattern
from ferrule.policy.approvals import ApprovalRequest
from ferrule.policy.budgets import Budget
from ferrule.policy.policy import Rule
from ferrule.server import call_routes
from ferrule.server.responses import PROBLEM_TYPE
from ferrule.store.record import CallInterval, CallStatistics
from ferrule.store.spending import BudgetState, CostSummary

REF: Final = "#/components/schemas/"
TYPES: Final[dict[str, dict[str, Any]]] = {
    "text": {"type": "string"},
    "time": {"type": "string", "format": "date-time"},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "object": {"type": "object"},
    "any": {},
}
_BASES: Final[tuple[Any, ...]] = (
    *(ApprovalRequest, Budget, BudgetState, CallInterval, CallStatistics, ConcurrencyMetrics, CostSummary, Decision),
    *(FailurePattern, Rule, Turn),
)
"""Values that are answered with as they are."""
OBJECTS: Final = {
    "Action": "name:text model_name:text description:text effect:text needs_approval:flag",
    "Tool": "tool_id:text name:text description:text tool_type:text source:text tags:[text] needs:text? "
    "actions:[Action]",
    "Change": "action:text diff:text",
    "Server": "tool_id:text state:text error:text is_listed:flag protocol_version:text? actions:whole changes:[Change]",
    "CallResult": "is_success:flag tool_name:text output:object error:text? error_type:text? "
    "validation_errors:[object] execution_time:number executed_at:time metadata:object call_id:text",
    "CallRecord": "record_id:text tool_name:text action:text? status:text is_success:flag? error:text? "
    "error_type:text? approval_state:text? execution_time:number? wait_time:number? attempts:whole caller_id:text? "
    "caller_type:text? conversation_id:text? workflow_id:text? source:text? principal:text? tenant:text? cost:number? "
    "parent_id:text? artifact_id:text? created_at:time",
    "Usage": "requests:whole input_tokens:whole output_tokens:whole total_tokens:whole",
    "Answer": "question:text answer:text state:text strategy:text trace_id:text run_id:text conversation_id:text "
    "plan:object? steps:[object] verification:object? tool_usage_summary:object usage:Usage cost:number? "
    "model_cost:number? tool_cost:number? timings:{number} cached:flag shared:flag questions:[object] "
    "approvals:[object] reason:text errors:[text]",
    "Run": "run_id:text state:text task:text turns:whole calls:whole text:text reason:text usage:Usage cost:number? "
    "seconds:number at:time",
    "Conversation": "conversation_id:text question:text at:number state:text",
    "Failure": "key:text *FailurePattern",
    "Approval": "tool:object? *ApprovalRequest",
    "Model": "id:text object:text created:whole owned_by:text",
    "Token": "token_id:text name:text display_name:text roles:[text] tools:[text]? max_effect:text tenant:text "
    "calls_per_minute:number? max_concurrent:whole? created_at:number expires_at:number? revoked_at:number?",
    "SecretToken": "token:text *Token",
    "PolicyRule": "text:text is_built_in:flag calls:whole last_called:any *Rule",
    "AuditEntry": "at:number by:text tenant:text action:text subject:text details:object",
    "Credential": "name:text updated_at:number",
    "Cost": "key:text cost:number *CostSummary",
    "TotalCost": "cost:number *CostSummary",
    "BudgetSpending": "spending:[BudgetState] *Budget",
    "Done": "name:text",
    "Problem": "type:text title:text status:whole detail:text",
    "Status": "status:text",
}
"""Fields of objects; `*Name` stands for the fields of another one."""
RESPONSES: Final = {
    "GET /v1/tools": "tools:[Tool]",
    "POST /v1/tools": "tool_id:text",
    "GET /v1/tools/{name}": "*Tool",
    "PATCH /v1/tools/{name}": "tool_id:text enabled:flag",
    "GET /v1/tools/{name}/schema": "schemas:[object]",
    "POST /v1/tools/{name}/call": "*CallResult",
    "GET /v1/calls": "calls:[CallRecord]",
    "POST /v1/calls": "results:[CallResult]",
    "GET /v1/calls/{call_id}": "params:object result:any metadata:object fingerprint:text? *CallRecord",
    "POST /v1/calls/{call_id}/cancel": "call_id:text cancelled:flag",
    "GET /v1/stats": "*CallStatistics",
    "GET /v1/stats/series": "intervals:[CallInterval]",
    "GET /v1/limits": "*ConcurrencyMetrics",
    "GET /v1/servers": "servers:[Server]",
    "GET /v1/servers/{name}": "*Server",
    "POST /v1/servers/{name}/accept": "tool_id:text accepted:[text]",
    "GET /v1/agent": "model:text? models:[text] currency:text",
    "POST /v1/ask": "*Answer",
    "GET /v1/runs": "runs:[Run]",
    "GET /v1/runs/{run_id}": "started_at:time costs:TotalCost strategy:text model:text? conversation_id:text "
    "questions:[object] approvals:[object] plan:any history:[object] messages:[object] *Run",
    "POST /v1/runs/{run_id}/resume": "*Answer",
    "POST /v1/runs/{run_id}/cancel": "run_id:text cancelled:flag",
    "GET /v1/conversations": "conversations:[Conversation]",
    "GET /v1/conversations/{conversation_id}": "conversation_id:text turns:[Turn] costs:TotalCost",
    "GET /v1/failures": "failures:[Failure]",
    "DELETE /v1/failures": "forgotten:whole",
    "PATCH /v1/failures/{key}": "*Failure",
    "GET /v1/approvals": "approvals:[Approval]",
    "GET /v1/approvals/{approval_id}": "*Approval",
    "POST /v1/approvals/{approval_id}": "*ApprovalRequest",
    "GET /v1/models": "object:text data:[Model]",
    "GET /v1/models/{name}": "*Model",
    "POST /v1/chat/completions": "id:text object:text created:whole model:text choices:[object] usage:object "
    "ferrule:object",
    "POST /v1/responses": "id:text object:text created_at:whole model:text status:text output:[object] usage:object "
    "metadata:object",
    "GET /v1/tokens": "tokens:[Token]",
    "POST /v1/tokens": "*SecretToken",
    "DELETE /v1/tokens/{name}": "revoked:flag *Done",
    "POST /v1/tokens/{name}/rotate": "overlap:number *SecretToken",
    "GET /v1/policy": "kind:text default:text? days:whole rules:[PolicyRule] warnings:[text]",
    "POST /v1/policy/test": "principal:text tool_id:text action:text is_listed:flag problems:[text] needs:text? "
    "*Decision",
    "GET /v1/audit": "entries:[AuditEntry]",
    "GET /v1/credentials": "credentials:[Credential]",
    "PUT /v1/credentials/{name}": "stored:flag *Done",
    "DELETE /v1/credentials/{name}": "deleted:flag *Done",
    "GET /v1/costs": "by:text currency:text costs:[Cost] total:TotalCost",
    "GET /v1/budgets": "currency:text budgets:[BudgetSpending]",
    "GET /healthz": "version:text *Status",
    "GET /readyz": "*Status",
    "POST /v1/session": "name:text roles:[text]",
    "DELETE /v1/session": "ended:flag",
    "GET /v1/me": "name:text permissions:[text] token:Token?",
}
"""The JSON of successful responses, by method and path."""

CALL_PATH: Final = "/v1/tools/{name}/call"
PUBLIC_PATHS: Final = ("/healthz", "/readyz")
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
_EVENT: Final = {
    "description": "Each event of the stream.",
    "type": "object",
    "properties": {"event": {"type": "string"}, "id": {"type": "string"}, "data": {"type": "string"}},
}
_STREAMED: Final = (CALL_PATH, "/v1/ask", "/v1/runs/{run_id}/resume", "/v1/chat/completions", "/v1/responses")
_MEDIA_TYPES: Final = {
    "/metrics": ["text/plain"],
    "/v1/events": ["text/event-stream"],
    "/v1/calls/{call_id}/artifact": ["application/octet-stream"],
    **dict.fromkeys(_STREAMED, ["application/json", "text/event-stream"]),
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
    schemas["Problem"] |= {"title": "Problem", "description": "RFC 9457: what happened, and what to do."}
    schemas["CallRequest"] = call_routes.CallRequest.model_json_schema(ref_template=f"{REF}{{model}}")
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
            types = _MEDIA_TYPES.get(path, ["application/json"])
            by_type = {"application/json": json, "text/event-stream": _EVENT}
            response["content"] = {each: {"schema": by_type.get(each, {"type": "string"})} for each in types}
    operation["responses"]["default"] = {"description": "The request was not fulfilled.", **problem}


def make_components() -> dict[str, Any]:
    """Return the schemas that responses refer to."""
    components: dict[str, Any] = {}
    for base in _BASES:
        schema = TypeAdapter(base).json_schema(mode="serialization", ref_template=f"{REF}{{model}}")
        components |= schema.pop("$defs", {})
        schema.pop("additionalProperties", None)
        components[base.__name__] = schema
    return components | {name: make_schema(fields) for name, fields in OBJECTS.items()}


def make_schema(fields: str) -> dict[str, Any]:
    """Return the schema of an object by its fields."""
    properties: dict[str, Any] = {}
    bases = []
    for field in fields.split():
        name, _, kind = field.partition(":")
        if kind:
            properties[name] = _schema_of(kind)
        else:
            bases.append({"$ref": REF + name.removeprefix("*")})
    own = {"type": "object", "required": list(properties), "properties": properties}
    if not bases:
        return own
    return {"allOf": [*bases, own]} if properties or len(bases) > 1 else bases[0]


def _schema_of(kind: str) -> dict[str, Any]:
    if kind.endswith("?"):
        return {"anyOf": [_schema_of(kind[:-1]), {"type": "null"}]}
    if kind.startswith("["):
        return {"type": "array", "items": _schema_of(kind[1:-1])}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": _schema_of(kind[1:-1])}
    return TYPES[kind] if kind in TYPES else {"$ref": REF + kind}
