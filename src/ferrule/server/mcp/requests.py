"""Requests of MCP clients while they are answered, and what the clients are asked meanwhile.

Clients of the older protocol are asked while their request waits. With the newer protocol the request is answered with
the questions and sent again with the answers: meanwhile it is paused here, under a token that the client sends back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from ferrule.core.aio import ProgressQueue
from ferrule.core.call import Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import as_text, replace_surrogates
from ferrule.core.permission import Principal
from ferrule.errors import APPROVAL_REQUIRED, CallCancelled, SetupError
from ferrule.kinds.mcp.relay import FIRST_MODERN_VERSION, LOG_LEVEL_KEY, current_request, is_logged
from ferrule.policy.approvals import Approvals

logger = logging.getLogger("ferrule.server")

ANSWER_TIMEOUT: Final = 600.0
"""Seconds a request stays paused for its client to send the answers."""
MAX_PAUSED_CALLS: Final = 100
"""Of one client."""
MAX_QUEUED_MESSAGES: Final = 1_000
"""Progress and log messages of one request that wait for its client to read; older ones are dropped."""
CLIENT_HEADERS: Final = "client_headers"
"""Where the state of an HTTP request has all its headers; its scope has those that routes need."""
LOG_LEVEL_STATE: Final = "ferrule.log_level"


class IncomingRequest:
    """One request of a client, as the SDK has read it."""

    def __init__(
        self,
        context: Any,
        principal: Principal,
        *,
        client_key: object = None,
        limit: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
        may_approve: bool = True,
    ) -> None:
        """`client_key` identifies the only client of a transport; `limit` counts a call of the client."""
        self._context, self.principal, self.limit, self.may_approve = context, principal, limit, may_approve
        self.waits_for_answers: bool = context.session.can_send_request
        """Whether the client can be asked while the request waits, as in the older protocol."""
        self.uses_older_protocol: bool = context.protocol_version < FIRST_MODERN_VERSION
        self.client_key: object = client_key or (connection_of(context) if self.waits_for_answers else self)

    @cached_property
    def capabilities(self) -> Mapping[str, Any]:
        declared = self._context.session.client_capabilities
        return {} if declared is None else declared.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._context.meta or {}

    @property
    def headers(self) -> Mapping[str, str]:
        request = self._context.request
        return {} if request is None else decode_headers(request.scope)

    @property
    def log_level(self) -> str | None:
        level = self.meta.get(LOG_LEVEL_KEY)
        if level is None and self.waits_for_answers:
            level = connection_of(self._context).state.get(LOG_LEVEL_STATE)
        return level if isinstance(level, str) else None

    async def send_request(self, request: Any) -> Any:
        """Ask on the stream of the request, which is the only one that is certainly open."""
        from mcp.shared.message import ServerMessageMetadata

        metadata = ServerMessageMetadata(related_request_id=self._context.request_id)
        return await self._context.session.send_request(request, client_reply_type(request), metadata=metadata)

    async def send_log(self, params: Any) -> None:
        from mcp.types import LoggingMessageNotification

        level = self.log_level
        if (level is None and not self.waits_for_answers) or not is_logged(params.level, level):
            return
        await self._context.session.send_notification(
            LoggingMessageNotification(params=params), related_request_id=self._context.request_id
        )

    async def send_progress(self, progress: Progress) -> None:
        amount, total = progress.amount, progress.total
        if amount is None:
            amount, total = progress.fraction or 0.0, None if progress.fraction is None else 1.0
        await self._context.session.report_progress(amount, total, replace_surrogates(progress.message) or None)


class StdioClient(IncomingRequest):
    """The client on standard input, which can be asked outside of its requests."""

    async def ask(self, key: str, request: Any) -> Any:
        return await connection_of(self._context).send_request(request, result_type=client_reply_type(request))


def invalid_params(message: str, data: Any = None) -> Exception:
    """Make the error of the protocol for a request that cannot be answered as it is."""
    from mcp.shared.exceptions import MCPError
    from mcp.types import INVALID_PARAMS

    return MCPError(code=INVALID_PARAMS, message=message, data=data)


def decode_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """Decode the headers of a request over HTTP, by their names in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["state"][CLIENT_HEADERS]}


def connection_of(context: Any) -> Any:
    """Return the connection of a request, which holds the state of the client. The SDK does not offer it."""
    return context.session._connection


def client_reply_type(request: Any) -> Any:
    from mcp.types import CreateMessageResult, CreateMessageResultWithTools, ElicitResult, ListRootsResult

    if request.method == "sampling/createMessage":
        has_tools = request.params.tools is not None or request.params.tool_choice is not None
        return CreateMessageResultWithTools if has_tools else CreateMessageResult
    return ElicitResult if request.method == "elicitation/create" else ListRootsResult


@dataclass(slots=True, eq=False)
class ClientCall:
    """A request of a client while it is answered; servers behind Ferrule ask and log through it.

    Its progress and log messages are sent in order, and all that wait before its result.
    """

    request: IncomingRequest
    """The one that is open now."""
    identity: object
    """What is asked for: only the same request can continue it."""
    questions: dict[str, tuple[Any, asyncio.Future[Any]]] = field(default_factory=dict)
    is_asking: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Any] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    messages: ProgressQueue[Callable[[], Coroutine[Any, Any, None]]] = field(
        default_factory=lambda: ProgressQueue(MAX_QUEUED_MESSAGES)
    )
    sending: asyncio.Task[None] | None = None

    @property
    def client_key(self) -> object:
        return self.request.client_key

    @property
    def uses_older_protocol(self) -> bool:
        return self.request.uses_older_protocol

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return self.request.capabilities

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.request.meta

    @property
    def headers(self) -> Mapping[str, str]:
        return self.request.headers

    @property
    def log_level(self) -> str | None:
        return self.request.log_level

    async def ask(self, key: str, request: Any) -> Any:
        """Ask the client. Raises CallCancelled when the call that asked has ended meanwhile."""
        asking = asyncio.ensure_future(
            self.request.send_request(request) if self.request.waits_for_answers else self._ask_later(key, request)
        )
        ended = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait({asking, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise CallCancelled("The call that asked has ended.")
            return asking.result()
        finally:
            asking.cancel()
            ended.cancel()

    async def send_log(self, params: Any) -> None:
        if not self.ended.is_set():
            self._add_message(lambda: self.request.send_log(params))

    def add_progress(self, progress: Progress) -> None:
        self._add_message(lambda: self.request.send_progress(progress))

    def _add_message(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.messages.add(send, is_progress=True)
        if self.sending is None or self.sending.done():
            self.sending = asyncio.create_task(self._send_messages())

    async def _send_messages(self) -> None:
        while not self.messages.is_empty:
            send = await self.messages.get()
            try:
                await send()
            except Exception as error:  # the client has disconnected
                logger.debug("error=<%s> | a message could not be sent to a client", error)

    async def _ask_later(self, key: str, request: Any) -> Any:
        while key in self.questions:
            key += "_"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.questions[key] = (request, future)
        self.is_asking.set()
        try:
            return await future
        finally:
            self.questions.pop(key, None)

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Deliver the answers. A question without an answer is asked again."""
        for key, (request, future) in self.questions.items():
            response = responses.get(key)
            if isinstance(response, client_reply_type(request)) and not future.done():
                future.set_result(response)
        if all(future.done() for _, future in self.questions.values()):
            self.is_asking.clear()


class PausedCalls:
    """Answers the requests of clients, and holds those that wait for answers."""

    def __init__(self) -> None:
        self.make_token: Callable[[], str] = partial(secrets.token_hex, 24)
        """Makes what a client sends back with its answers."""
        self._paused: dict[str, ClientCall] = {}

    async def run(
        self,
        request: IncomingRequest,
        identity: object,
        execute: Callable[[ClientCall], Coroutine[Any, Any, Any]],
        params: Any = None,
    ) -> Any:
        """Answer a request; returns the result, or the questions that are asked first.

        A request whose `params` have answers continues the call that has asked.
        """
        if getattr(params, "request_state", None) is not None:
            return await self._resume(request, identity, params)
        call = ClientCall(request=request, identity=identity)
        if request.waits_for_answers or not request.capabilities:
            return await answer_call(call, execute)
        call.task = asyncio.create_task(answer_call(call, execute))
        return await self._result_or_questions(call)

    async def _resume(self, request: IncomingRequest, identity: object, params: Any) -> Any:
        """Continue a call that has asked; only who made it can answer, and only with the same request."""
        call = self._paused.get(params.request_state)
        if call is None or call.request.principal != request.principal or call.identity != identity:
            raise invalid_params("This request does not wait for an answer, or no more. Make it again from the start.")
        del self._paused[params.request_state]
        call.request = request  # progress and log messages go to the request that is open now
        call.answer(params.input_responses or {})
        return await self._result_or_questions(call)

    async def aclose(self) -> None:
        for token in list(self._paused):
            self._end(token)

    async def _result_or_questions(self, call: ClientCall) -> Any:
        assert call.task is not None
        asking = asyncio.ensure_future(call.is_asking.wait())
        try:
            await asyncio.wait({call.task, asking}, return_when=asyncio.FIRST_COMPLETED)
            if not call.task.done():
                await asyncio.sleep(0)  # the other questions of the same round
        except asyncio.CancelledError:
            call.task.cancel()
            await asyncio.wait({call.task})
            raise
        finally:
            asking.cancel()
        return call.task.result() if call.task.done() else self._pause(call)

    def _pause(self, call: ClientCall) -> Any:
        from mcp.types import InputRequiredResult

        own = [token for token, each in self._paused.items() if each.request.principal == call.request.principal]
        if len(own) >= MAX_PAUSED_CALLS:
            self._end(own[0])
        token = self.make_token()
        self._paused[token] = call
        asyncio.get_running_loop().call_later(ANSWER_TIMEOUT, self._end, token)
        questions = {key: request for key, (request, future) in call.questions.items() if not future.done()}
        return InputRequiredResult(input_requests=questions, request_state=token)

    def _end(self, token: str) -> None:
        call = self._paused.pop(token, None)
        if call is not None and call.task is not None:
            call.task.cancel()


async def answer_call(call: ClientCall, execute: Callable[[ClientCall], Coroutine[Any, Any, Any]]) -> Any:
    """Answer a request of a client; what servers behind Ferrule ask meanwhile is asked through the call."""
    token = current_request.set(call)
    try:
        return await execute(call)
    finally:
        current_request.reset(token)
        call.ended.set()
        if call.sending is not None:
            await asyncio.wait({call.sending})


# Approvals: a request is in the inbox like any other, and who answers first decides, here or there. The holder of a
# token is asked only if the token may approve calls: a client must not approve what it wants itself.

POLL_INTERVAL: Final = 1.0
"""Seconds between two looks into the inbox while the user is asked."""
MAX_ARGUMENTS_LENGTH: Final = 2_000
_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow this call", "default": False}},
    "required": ["allow"],
}


class ApprovalQuestions:
    """Turns `approval_required` into a question to the client's user."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    async def execute(
        self,
        call: ClientCall,
        name: str,
        context: ToolExecutionContext,
        execute: Callable[[ToolExecutionContext], Awaitable[ToolExecutionResult]],
    ) -> ToolExecutionResult:
        """Make a call. One that needs approval is made again when somebody has decided."""
        result = await execute(context)
        if result.error_type != APPROVAL_REQUIRED or not (approval_id := result.metadata.get("approval_id")):
            return result
        if not call.request.may_approve or "elicitation" not in call.capabilities:
            return result
        asking = asyncio.ensure_future(self._ask_user(call, str(approval_id), name))
        watching = asyncio.ensure_future(self._wait_for_decision(str(approval_id)))
        try:
            await asyncio.wait({asking, watching}, return_when=asyncio.FIRST_COMPLETED)
            is_decided = asking.result() if asking.done() else True
        finally:
            asking.cancel()
            watching.cancel()
        return await execute(replace(context, approval_id=str(approval_id))) if is_decided else result

    async def _ask_user(self, call: ClientCall, approval_id: str, name: str) -> bool:
        """Return whether the user has decided by this question. Cancelling it leaves the request in the inbox."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import ElicitRequest, ElicitRequestFormParams

        request = await self._approvals.get(approval_id)
        arguments = as_text(request.arguments)
        if (
            len(arguments) > MAX_ARGUMENTS_LENGTH
        ):  # what is not shown cannot be approved: the request waits in the inbox
            return False
        action = request.tool_id if request.action == request.tool_id else f"{request.tool_id} ({request.action})"
        through = "" if request.tool_id in name else f", made by {name!r},"
        message = f"Allow the call of {action}{through} with these arguments?\n{request.reason}\nArguments: {arguments}"
        message = "\n".join([message, *request.describe_origins()])
        form = ElicitRequestFormParams(message=replace_surrogates(message), requested_schema=_FORM)
        try:
            answer = await call.ask("approval", ElicitRequest(params=form))
        except MCPError:  # the client cannot ask after all
            return False
        if answer.action == "cancel":
            return False
        is_allowed = answer.action == "accept" and (answer.content or {}).get("allow") is True
        with suppress(SetupError):  # an earlier decision counts
            await self._approvals.record_decision(approval_id, is_allowed, by=call.request.principal.label)
        return True

    async def _wait_for_decision(self, approval_id: str) -> None:
        while (await self._approvals.get(approval_id)).state == "pending":
            await asyncio.sleep(POLL_INTERVAL)
