"""A call between two servers as JSON: what one sends to the other that is to make it, and what comes back.

What an MCP server answers is sent as it is, so that clients get the same from every server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from ferrule.core.call import Invocation, Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Output
from ferrule.core.permission import Principal
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.errors import (
    CallCancelled,
    CallError,
    ExecutionFailed,
    InvalidArguments,
    NeedsApproval,
    PermissionDenied,
    Rejected,
    TimedOut,
    Transient,
    TransportFault,
)
from ferrule.kinds.mcp.listing import pinned_parts
from ferrule.kinds.mcp.relay import ClientRequest
from ferrule.kinds.mcp.results import ProtocolError, convert_result

Values = dict[str, Any]

_ANSWER_TYPES: Final = ("CallToolResult", "ReadResourceResult", "GetPromptResult")
_ERROR_TYPES: Final = {
    kind.__name__: kind
    for kind in (
        CallCancelled,
        ExecutionFailed,
        InvalidArguments,
        NeedsApproval,
        PermissionDenied,
        Rejected,
        TimedOut,
        Transient,
        TransportFault,
    )
}
"""Others arrive as ExecutionFailed."""


def encode_message(values: Values) -> bytes:
    """In one line. Not with orjson, which changes large numbers, and those that JSON does not have."""
    return json.dumps(values, default=str).encode()


def decode_message(line: bytes) -> Values:
    values: Values = json.loads(line)
    return values


def encode_invocation(executor: str, invocation: Invocation, request: ClientRequest | None, client_key: str) -> Values:
    """`client_key` is equal for requests that the same client makes to this server."""
    capability, context = invocation.capability, invocation.context
    effects = invocation.tool.spec.effects_of(capability)
    return {
        "call_id": invocation.call_id,
        "executor": executor,
        "tool_id": invocation.tool.id,
        "capability": {"name": capability.name, **pinned_parts(capability), "effects": asdict(effects)},
        "listed": None if capability.listed is None else {"name": capability.name, **pinned_parts(capability.listed)},
        "params": invocation.params,
        "principal": {
            "kind": context.principal.kind,
            "name": context.principal.name,
            "tenant": context.principal.tenant,
            "account": context.principal.account,
        },
        "is_approved": context.is_approved,
        "client": None
        if request is None
        else {
            "key": client_key,
            "uses_older_protocol": request.uses_older_protocol,
            "capabilities": dict(request.capabilities),
            "meta": dict(request.meta),
            "log_level": request.log_level,
        },
    }


def decode_invocation(message: Values, tool: Tool, report: Callable[[Progress], None]) -> Invocation:
    """The call as its executor gets it. It calls no other tools: those of MCP servers cannot."""
    capability = dict(message["capability"])
    effects = Effects(**capability.pop("effects"))
    listed = None if message.get("listed") is None else ToolCapability(**message["listed"])
    context = ToolExecutionContext(principal=Principal(**message["principal"]))
    context.is_approved = message["is_approved"]
    return Invocation(
        message["call_id"],
        tool,
        ToolCapability(**capability, effects=effects, listed=listed),
        message["params"],
        context,
        report,
        _refuse_nested_call,
    )


async def _refuse_nested_call(tool_name: str, params: dict[str, Any], action: str | None, /) -> ToolExecutionResult:
    raise ExecutionFailed("An action of an MCP server calls no other tools.")


def encode_outcome(outcome: Output | CallError) -> Values:
    """What an executor returned, or raised."""
    original = outcome.original
    if type(original).__name__ in _ANSWER_TYPES:
        dumped = original.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {"answer": {"type": type(original).__name__, "value": dumped}}
    if isinstance(outcome, Output):
        raise TypeError(f"{type(original).__name__} is no answer of an MCP server")
    message: Values = {"type": type(outcome).__name__, "text": str(outcome), "details": dict(outcome.details)}
    if type(original).__name__ == "MCPError":
        message["mcp_error"] = original.error.model_dump(mode="json", exclude_unset=True)
    elif isinstance(original, ProtocolError):
        message["protocol_error"] = asdict(original)
    return {"error": message}


def decode_outcome(message: Mapping[str, Any]) -> Output:
    """What the executor of the other server returned; raises what it raised."""
    if "error" in message:
        raise _decode_error(message["error"])
    import mcp.types

    kind = message["answer"]["type"]
    if kind not in _ANSWER_TYPES:
        raise ExecutionFailed(f"another server answered with {kind!r}, which this one does not know", outcome="unknown")
    answer = getattr(mcp.types, kind).model_validate(message["answer"]["value"])
    if kind != "CallToolResult":
        return Output(data=answer.model_dump(mode="json", by_alias=True, exclude_none=True), original=answer)
    try:
        output = convert_result(answer)
    except ExecutionFailed as error:
        error.original = answer
        raise
    return Output(data=output.data, parts=output.parts, original=answer)


def _decode_error(message: Mapping[str, Any]) -> CallError:
    error = _ERROR_TYPES.get(message["type"], ExecutionFailed)(message["text"])
    error.details = message["details"]
    if "mcp_error" in message:
        from mcp.shared.exceptions import MCPError

        error.original = MCPError(**message["mcp_error"])
    elif "protocol_error" in message:
        error.original = ProtocolError(**message["protocol_error"])
    return error


# Questions of a server to the client of a call


def encode_question(request: Any) -> Values:
    dumped: Values = request.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def decode_question(message: Mapping[str, Any]) -> Any:
    from mcp.types import CreateMessageRequest, ElicitRequest, ListRootsRequest

    kinds: dict[str, Any] = {
        "elicitation/create": ElicitRequest,
        "sampling/createMessage": CreateMessageRequest,
        "roots/list": ListRootsRequest,
    }
    return kinds[message["method"]].model_validate(message)


def encode_reply(reply: Any) -> Values:
    """The client's result, or the error that it or this server answered with."""
    from mcp.types import ErrorData

    name = "error" if isinstance(reply, ErrorData) else "result"
    return {name: reply.model_dump(mode="json", by_alias=True, exclude_unset=True)}


def decode_reply(request: Any, message: Mapping[str, Any]) -> Any:
    """The client's result; MCPError as it answered."""
    from mcp.shared.exceptions import MCPError

    from ferrule.server.mcp.requests import client_reply_type

    if "error" in message:
        raise MCPError(**message["error"])
    return client_reply_type(request).model_validate(message["result"])
