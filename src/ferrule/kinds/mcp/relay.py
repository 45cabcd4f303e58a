"""What passes between an MCP server behind Ferrule and the MCP client that makes the call.

A server may ask the client's user, its model or its folders (`elicitation/create`, `sampling/createMessage`,
`roots/list`), and write log messages for it. Such messages are passed on unchanged, and only to the client whose
request they belong to. A server of the older protocol does not say which request that is: then they are passed on only
while all its running requests were made for the same client.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from ferrule.core.content import plain_json, replace_surrogates
from ferrule.core.elicitation import ClientReply, Elicitation, OnElicit
from ferrule.errors import CallCancelled, CallError

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

logger = logging.getLogger("ferrule.mcp")

FIRST_MODERN_VERSION: Final = "2026-07-28"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
_RESERVED_META: Final = "io.modelcontextprotocol/"
_PROGRESS_TOKEN: Final = "progressToken"
PASSED_CAPABILITIES: Final = ("elicitation", "sampling", "roots")
"""What a client can do for a server behind Ferrule."""
_METHODS: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The capability that a client needs for each request of a server."""
LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
MAX_QUESTIONS: Final = 32
"""Of one request of a client that may wait for answers; further ones are refused."""


class ClientRequest(Protocol):
    """A request of an MCP client, for which a server behind Ferrule is asked something."""

    @property
    def client_key(self) -> object:
        """Equal for requests of the same client."""

    @property
    def uses_older_protocol(self) -> bool:
        """Whether the client speaks the protocol before 2026, in which servers send requests of their own."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares that it can do."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` of the request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the client's request, of which a server gets those that its entry names."""

    @property
    def log_level(self) -> str | None:
        """The least important log messages that the client wants; None if it did not say."""

    async def ask(self, key: str, request: Any) -> Any:
        """Pass a request of the server on; returns the result, or raises MCPError as the client answers."""

    async def send_log(self, params: Any) -> None:
        """Pass a log message on."""


current_request: ContextVar[ClientRequest | None] = ContextVar("ferrule_mcp_client_request", default=None)
"""The request of a client that is being answered."""


async def ask_client(question: Elicitation) -> dict[str, Any] | None:
    """Ask the client whose request is being answered; None when its user declines.

    Given to an engine as `on_elicit`, it lets tools and MCP servers ask the users of `McpServer`.
    """
    request = current_request.get()
    message = _make_request(question) if question.request is None else question.request
    if request is None or _METHODS[message.method] not in request.capabilities:
        raise CallError("The client of this call cannot ask its user. Continue with what is known.")
    result = await request.ask(question.key, message)
    action = getattr(result, "action", "accept")
    if question.request is None and action != "accept":
        if action == "decline":
            return None
        raise CallCancelled("The user did not answer.")
    return ClientReply(result)


def _make_request(question: Elicitation) -> Any:
    import secrets

    from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams

    text, schema = replace_surrogates(question.message), plain_json(question.schema)
    if question.url is not None:
        token = secrets.token_urlsafe(12)
        return ElicitRequest(params=ElicitRequestURLParams(message=text, url=question.url, elicitation_id=token))
    form = schema or {"type": "object", "properties": {}}
    return ElicitRequest(params=ElicitRequestFormParams(message=text, requested_schema=form))


class ServerRequestCallbacks:
    """The callbacks of the SDK's client for what a server asks, which pass it on through `ask`."""

    def __init__(self, tool_id: str, ask: OnElicit) -> None:
        self._tool_id, self._ask = tool_id, ask
        self._waiting = 0

    async def elicit(self, context: Any, params: Any) -> Any:
        from mcp.types import ElicitRequest

        schema, url = getattr(params, "requested_schema", None), getattr(params, "url", None)
        return await self.pass_on(
            str(context.request_id), ElicitRequest(params=params), params.message, schema=schema, url=url
        )

    async def create_message(self, context: Any, params: Any) -> Any:
        from mcp.types import CreateMessageRequest

        return await self.pass_on(str(context.request_id), CreateMessageRequest(params=params), "asks the model")

    async def list_roots(self, context: Any) -> Any:
        from mcp.types import ListRootsRequest

        return await self.pass_on(str(context.request_id), ListRootsRequest(), "asks for the folders")

    async def pass_on(self, key: str, request: Any, message: str, **details: Any) -> Any:
        """The client's result, or the error to answer the server with."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import INVALID_REQUEST, ErrorData

        if self._waiting >= MAX_QUESTIONS:
            return ErrorData(code=INVALID_REQUEST, message="Too many questions wait for answers.")
        question = Elicitation(tool_id=self._tool_id, message=message, request=request, key=key, **details)
        self._waiting += 1
        try:
            reply = await self._ask(question)
        except MCPError as error:  # as the client answered
            return error.error
        except (CallError, CallCancelled) as error:
            return ErrorData(code=INVALID_REQUEST, message=str(error))
        except Exception:
            logger.exception("tool=<%s> | a question could not be passed on", self._tool_id)
            return ErrorData(code=INVALID_REQUEST, message="The question could not be passed on.")
        finally:
            self._waiting -= 1
        if isinstance(reply, ClientReply):
            return reply.result
        return ErrorData(code=INVALID_REQUEST, message="There is no client that could answer.")


def add_client_details(params: dict[str, Any]) -> None:
    """Let a request to a server say what the client in front of it can do, and pass on the client's own `_meta`."""
    request = current_request.get()
    if request is None:
        return
    meta = params.setdefault("_meta", {})
    for key, value in request.meta.items():
        if key != _PROGRESS_TOKEN and not key.startswith(_RESERVED_META):
            meta.setdefault(key, value)
    if CAPABILITIES_KEY in meta:  # the newer protocol declares them with each request
        own = {key: value for key, value in meta[CAPABILITIES_KEY].items() if key not in PASSED_CAPABILITIES}
        passed = {key: request.capabilities[key] for key in PASSED_CAPABILITIES if key in request.capabilities}
        meta[CAPABILITIES_KEY] = own | passed
        if request.log_level is not None:
            meta[LOG_LEVEL_KEY] = request.log_level


def add_client_details_to_request(message: SessionMessage) -> None:
    """The same for a message of the SDK, if it is a request."""
    params = getattr(message.message, "params", None)
    if getattr(message.message, "id", None) is not None and isinstance(params, dict):
        add_client_details(params)


def is_logged(level: str, lowest: str | None) -> bool:
    """Whether a message of this level is wanted by a client that asked for `lowest` and above."""
    if lowest is None or level not in LOG_LEVELS or lowest not in LOG_LEVELS:
        return True
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(lowest)


class ClientDetailsStream:
    """A write stream of the SDK whose requests say for which client they are made."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, message: SessionMessage, /) -> None:
        add_client_details_to_request(message)
        await self._stream.send(message)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> ClientDetailsStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stream.__aexit__(*exc)


OnChange = Callable[[str, str, str | None], Awaitable[None]]
"""Called with the id of a tool, what its server has changed (`tools`, `prompts`, `resources`, `resource`), and the
address of the resource."""
