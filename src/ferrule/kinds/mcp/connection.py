"""One session with a server, owned by one task.

The session's cancel scopes must be entered and left in the same task, so the owner task opens everything, waits until
the session is to end or has ended, and closes everything. Calls are made from the tasks of their callers: when a
caller is cancelled the SDK notifies the server (`notifications/cancelled`), and the session goes on.

Imported when the first server is connected, because the SDK takes a second to import.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from itertools import count
from typing import Any, Final, TypeVar

from mcp import Client
from mcp.client.auth import OAuthFlowError
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolResult,
    EmptyResult,
    Implementation,
    PingRequest,
    RootsListChangedNotification,
    SetLevelRequest,
    SetLevelRequestParams,
)

from ferrule import __version__
from ferrule.core.aio import cancel_all
from ferrule.core.call import Invocation, Progress
from ferrule.core.content import as_text
from ferrule.core.elicitation import Elicitation, elicitation_callback
from ferrule.errors import CallError, ExecutionFailed, InvalidArguments, SetupError, TransportFault
from ferrule.kinds.mcp.listing import OutputChecks, ServerListing
from ferrule.kinds.mcp.relay import (
    RELIST_TIMEOUT,
    ChangeListener,
    ConnectOptions,
    ProtocolMode,
    ServerRequestCallbacks,
    ToolListRefresher,
    current_request,
)
from ferrule.kinds.mcp.results import (
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    UNKNOWN_ACTION_CODES,
    UNREADABLE_ANSWERS,
    CallNotSent,
    CallRefused,
    SessionExpired,
    describe_cause,
    is_connect_error,
    is_connection_lost,
    make_protocol_error,
    make_unknown_outcome,
    root_cause,
)
from ferrule.kinds.mcp.stdio import ConnectionState, ServerLog
from ferrule.kinds.mcp.transports import OutgoingCall, current_call, open_streams

T = TypeVar("T")

logger = logging.getLogger("ferrule.mcp")

REFUSING_STATUSES: Final = frozenset({401, 403, 404, 405, 406, 407, 411, 413, 414, 415, 421, 426, 428, 429, 431})
"""HTTP statuses by which a server or a proxy says that it has not taken the request."""
CLOSE_TIMEOUT: Final = 10.0


class Connection:
    """A running session."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        log = ServerLog(options.tool_id, options.secrets.hide)
        self._state = ConnectionState(log, options.config, options.auth)
        self._refresher = ToolListRefresher(options)
        self._changes = ChangeListener(options, self._refresher.mark_stale)
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # In a new context: the session outlives the call that happened to need it first.
        name = f"ferrule-mcp-{options.tool_id}"
        self._owner = asyncio.create_task(self._run_session(), name=name, context=contextvars.Context())
        self._cause: BaseException | None = None
        self._output_checks = OutputChecks()
        self._call_numbers = count()
        self._call_contexts: dict[int, contextvars.Context] = {}
        """The contexts of the calls that are not answered yet, by their numbers."""
        self._last_cancelled_call = -1
        self.has_succeeded = False
        """Whether any call has been answered."""

    @classmethod
    async def open(cls, options: ConnectOptions) -> Connection:
        """Connect and list the actions. Raises TransportFault or ExecutionFailed when that fails."""
        connection = cls(options)
        try:
            await asyncio.shield(connection._ready)
        except asyncio.CancelledError:
            await connection.aclose()
            raise
        except Exception as error:
            with options.secrets.hide_in_errors():
                raise connection._make_start_error(error) from error
        return connection

    @property
    def is_open(self) -> bool:
        return not self._state.ended.is_set()

    @property
    def log_lines(self) -> tuple[str, ...]:
        """Return what the server wrote last besides the protocol."""
        return tuple(self._state.log.recent_lines)

    @property
    def listing(self) -> ServerListing:
        return self._refresher.listing

    @property
    def protocol_mode(self) -> ProtocolMode:
        """Return the mode to use for the next connection to this server."""
        return "auto" if self._ready.result().session.initialize_result is None else "legacy"

    @property
    def may_be_busy(self) -> bool:
        """Return whether a call older than a cancelled call is unanswered: the server may be working on that call."""
        return bool(self._call_contexts) and min(self._call_contexts) < self._last_cancelled_call

    async def call(self, invocation: Invocation, *, repeatable: bool) -> CallToolResult:
        """Call an action. Raises SessionExpired or a CallError."""
        with self._track_request() as number, self._options.secrets.hide_in_errors():
            try:
                return await self._call(invocation, repeatable=repeatable)
            except asyncio.CancelledError:
                self._last_cancelled_call = max(self._last_cancelled_call, number)
                raise

    @contextmanager
    def _track_request(self) -> Iterator[int]:
        number = next(self._call_numbers)
        self._call_contexts[number] = contextvars.copy_context()
        try:
            yield number
        finally:
            del self._call_contexts[number]

    async def _call(self, invocation: Invocation, *, repeatable: bool) -> CallToolResult:
        action = invocation.capability.name
        try:  # the SDK would notice only while sending, and end the session
            json.dumps(invocation.params, ensure_ascii=False, allow_nan=False, default=str).encode()
        except (ValueError, RecursionError) as error:
            raise InvalidArguments(f"the arguments of {action!r} cannot be sent: {error}") from None
        client = self._ready.result()

        async def report(progress: float, total: float | None, message: str | None) -> None:
            fraction = min(progress / total, 1.0) if total else None
            hidden = self._options.secrets.hide(message or "")
            invocation.report(Progress(fraction=fraction, message=hidden, amount=progress, total=total))

        call = OutgoingCall()
        token = current_call.set(call)
        try:
            result = await client.call_tool(action, invocation.params, progress_callback=report)
        except MCPError as error:
            if call.is_session_expired and error.code != METHOD_NOT_FOUND:
                raise SessionExpired from error
            if call.is_session_doubtful and len(self._call_contexts) == 1:
                self._state.ended.set()  # the next call opens another session; this one is not repeated
            raise await self._call_failure(error, action, repeatable, call) from error
        except (RuntimeError, ValueError) as error:  # a response that violates the protocol
            raise self._invalid_response(error) from error
        finally:
            current_call.reset(token)
        self.has_succeeded = True
        try:
            await self._output_checks.check(invocation.capability, result)
        except ExecutionFailed as error:
            raise self._invalid_response(error) from None
        return result

    async def request(self, operation: Callable[[Client], Awaitable[T]]) -> T:
        """Ask the server for something else than a call. Raises MCPError as the server answers, or TransportFault."""
        with self._track_request():
            try:
                return await operation(self._ready.result())
            except MCPError as error:
                if is_connection_lost(error.code, error.message):
                    reason = f"the connection to {self._options.tool_id!r} ended: {self._end_reason()}"
                    raise TransportFault(reason) from None
                hide = self._options.secrets.hide
                raise MCPError(code=error.code, message=hide(error.message), data=hide(error.data)) from None
            except (RuntimeError, ValueError) as error:  # a response that violates the protocol
                raise self._invalid_response(error) from error

    async def subscribe_resource(self, uri: str) -> None:
        await self.request(lambda client: self._changes.subscribe_resource(client, uri))

    async def unsubscribe_resource(self, uri: str) -> None:
        await self.request(lambda client: self._changes.unsubscribe_resource(client, uri))

    async def set_log_level(self, level: str) -> None:
        """Tell a server of the older protocol which log messages are wanted. Others are told with each request."""
        session = self._ready.result().session
        capabilities = session.server_capabilities
        if session.initialize_result is not None and capabilities is not None and capabilities.logging is not None:
            params = SetLevelRequestParams(level=level)  # type: ignore[arg-type]
            await self.request(lambda client: client.session.send_request(SetLevelRequest(params=params), EmptyResult))

    async def ping(self, timeout: float) -> float:
        """Return the seconds the server takes to answer. Raises TransportFault when it does not answer."""
        name, session = self._options.tool_id, self._ready.result().session
        started = time.perf_counter()
        try:
            async with asyncio.timeout(timeout):
                if session.initialize_result is None:
                    await session.send_discover(session.protocol_version or "")
                else:
                    await session.send_request(PingRequest(), EmptyResult)
        except TimeoutError:
            raise TransportFault(f"{name!r} has not answered for {timeout:g} s") from None
        except MCPError as error:
            # Any other error shows that the server responds.
            if error.code == REQUEST_TIMEOUT or is_connection_lost(error.code, error.message):
                raise TransportFault(f"{name!r} does not answer: {self._end_reason()}") from error
        return time.perf_counter() - started

    async def aclose(self) -> None:
        """End the session; when this returns, its program and tasks have ended."""
        self._state.ended.set()
        if not self._ready.done():
            self._owner.cancel()
        done, _ = await asyncio.wait({self._owner}, timeout=CLOSE_TIMEOUT)
        if not done:
            self._owner.cancel()
            await asyncio.wait({self._owner})

    # The owner task

    async def _run_session(self) -> None:
        async def skip_check(name: str, result: CallToolResult) -> None:
            """Replace the SDK's check of results, which would list all actions again: `OutputChecks` checks them."""

        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._options.config.start_timeout):
                    client = await stack.enter_async_context(self._client())
                    client.session.validate_tool_result = skip_check  # type: ignore[method-assign]
                    self._state.serve_calls(client.session)
                    self._refresher.listing = await self._refresher.list_now(client)
                await self._options.on_listing(self.listing)
                self._ready.set_result(client)
                await self._set_first_log_level()
                work = (self._refresher.refresh_forever(client), self._changes.listen_forever(client))
                tasks = [asyncio.create_task(each) for each in work]
                try:
                    await self._state.ended.wait()
                finally:
                    await cancel_all(tasks)
        except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
            self._cause = error
            if not self._ready.done():
                cause, stopped = root_cause(error), TransportFault("the server was stopped while it was starting")
                self._ready.set_exception(cause if isinstance(cause, Exception) else stopped)
                self._ready.exception()  # mark as retrieved: the caller may have been cancelled
        finally:
            self._state.ended.set()

    async def _set_first_log_level(self) -> None:
        try:
            async with asyncio.timeout(RELIST_TIMEOUT):
                if self._options.log_level is not None:
                    await self.set_log_level(self._options.log_level)
        except (MCPError, CallError, TimeoutError) as error:
            reason = self._options.secrets.hide(describe_cause(error))
            logger.info("tool=<%s> | the server does not set its log level: %s", self._options.tool_id, reason)

    def _client(self) -> Client:
        options = self._options
        callbacks: dict[str, Any] = {}
        if options.relays and options.on_elicit is not None:
            questions = ServerRequestCallbacks(options.tool_id, self._ask)
            callbacks = {
                "elicitation_callback": questions.elicit,
                "sampling_callback": questions.create_message,
                "list_roots_callback": questions.list_roots,
            }
        elif options.on_elicit is not None:
            callbacks = {"elicitation_callback": elicitation_callback(options.tool_id, self._ask)}
        return Client(
            open_streams(options.kind, options.config, self._state),
            mode=options.protocol_mode,
            client_info=Implementation(name="ferrule", version=__version__),
            **callbacks,
            logging_callback=self._on_log,
            message_handler=self._changes.handle,
            cache=None,
        )

    # Messages from the server

    async def _ask(self, question: Elicitation) -> dict[str, Any] | None:
        """Ask the user in the context of the call that the question belongs to."""
        on_elicit, context = self._options.on_elicit, self._find_context()
        assert on_elicit is not None, "without it the server is told that users cannot be asked"

        request = current_request.get() if context is None else context.get(current_request)
        client = self._options.find_local_client()
        is_its_server = client is not None and (request is None or request.client_key == client.client_key)
        if is_its_server and getattr(question.request, "method", "") == "roots/list":
            # The client is asked outside of its calls: a call of it may end meanwhile.
            context = contextvars.Context()
            context.run(current_request.set, client)
        if context is None:
            return await on_elicit(question)

        async def ask() -> dict[str, Any] | None:
            return await on_elicit(question)

        return await asyncio.create_task(ask(), context=context)

    async def announce_roots(self) -> None:
        """Tell a server of the older protocol that the client's folders are others now, so that it asks for them."""
        session = self._ready.result().session
        if self._options.relays and session.initialize_result is not None:
            with suppress(Exception):  # the connection has just ended
                await session.send_notification(RootsListChangedNotification())

    def _find_context(self) -> contextvars.Context | None:
        """Return the context of the request that a message of the server belongs to; None for the current context.

        On standard output, servers do not say which request that is: it is certain when exactly one is running, and
        does not matter when all were made for the same client.
        """
        if Invocation.current.get() is not None or current_request.get() is not None:
            return None
        contexts = list(self._call_contexts.values())
        if len(contexts) == 1:
            return contexts[0]
        requests = [context.get(current_request) for context in contexts]
        keys = {None if request is None else request.client_key for request in requests}
        return contexts[-1] if len(keys) == 1 and None not in keys else None

    async def _on_log(self, params: Any) -> None:
        self._state.log.message(params.level, as_text(params.data))
        context = self._find_context()
        request = current_request.get() if context is None else context.get(current_request)
        if request is not None:
            hidden = self._options.secrets.hide(params.data)
            await request.send_log(params if hidden == params.data else params.model_copy(update={"data": hidden}))

    # Failures

    def _invalid_response(self, error: Exception) -> ExecutionFailed:
        """Make the failure of an action that was executed, but whose answer does not say whether it succeeded."""
        return ExecutionFailed(f"{self._options.tool_id!r} sent an invalid response: {error}", outcome="unknown")

    async def _call_failure(self, error: Any, action: str, repeatable: bool, call: OutgoingCall) -> CallError:
        name, status, text = self._options.tool_id, call.error_status, call.error_text or error.message
        answered = f"{name!r} answered the call of {action!r} with"
        ended = f"the connection to {name!r} ended during the call of {action!r}:"
        if status == 401:
            return CallRefused(f"{name!r} refused the call (HTTP 401){self._login_advice()}")
        if status is not None and status >= 500:
            return make_unknown_outcome(f"{answered} HTTP status {status}: {text}", repeatable=repeatable)
        if call.error_text is not None:
            # The protocol refuses with a message. What else answers may have passed the call on before.
            if status in REFUSING_STATUSES or repeatable:
                return make_protocol_error(name, error.code, f"HTTP status {status}: {text}", error.data)
            return make_unknown_outcome(f"{answered} HTTP status {status}: {text}", repeatable=False)
        if error.message.startswith(UNREADABLE_ANSWERS):
            message = f"{answered} an answer that cannot be read: {error.message}"
            return make_unknown_outcome(message, repeatable=repeatable)
        if is_connection_lost(error.code, error.message):
            if self.is_open:  # only the connection of this call broke
                return make_unknown_outcome(f"{ended} {error.message}", repeatable=repeatable)
            was_only_call = len(self._call_contexts) == 1
            # The owner task knows the reason when it has closed everything.
            await asyncio.wait({self._owner}, timeout=CLOSE_TIMEOUT)
            if was_only_call and is_connect_error(self._cause):
                return CallNotSent(f"{name!r} cannot be reached, and the call was not sent: {self._end_reason()}")
            return make_unknown_outcome(f"{ended} {self._end_reason()}", repeatable=repeatable)
        if error.code in UNKNOWN_ACTION_CODES:
            self._refresher.mark_stale()
        return make_protocol_error(name, error.code, error.message, error.data)

    def _make_start_error(self, error: BaseException) -> CallError:
        server = f"MCP server {self._options.tool_id!r} ({self._options.location})"
        if isinstance(error, TimeoutError):
            seconds = self._options.config.start_timeout
            return TransportFault(f"{server} did not start within {seconds:g} s{self._error_details()}")
        # Another try does not change that the server refuses us, or that no person has logged in.
        is_refused = self._state.error_status in (401, 403) or isinstance(root_cause(error), OAuthFlowError)
        is_final = is_refused or isinstance(error, SetupError) or (isinstance(error, CallError) and not error.transient)
        failure = ExecutionFailed if is_final else TransportFault
        was_closed = bool(self._state.end_reason) and str(error) == "Connection closed"
        reason = self._state.end_reason if was_closed else describe_cause(error)
        return failure(f"{server} cannot be used: {reason}{self._error_details()}")

    def _end_reason(self) -> str:
        if self._cause is None and self._state.end_reason:
            return self._state.end_reason + self._error_details()
        return describe_cause(self._cause) + self._error_details()

    def _error_details(self) -> str:
        """Describe the last HTTP error and the end of the server's standard error."""
        status = self._state.error_status
        text = "" if status is None else f" (HTTP {status})"
        text += self._login_advice() if status in (401, 403) else ""
        tail = self._state.log.tail
        return text + (f". Its last output: {tail[-500:]}" if tail else "")

    def _login_advice(self) -> str:
        return f"; log in with `ferrule mcp login {self._options.tool_id}`, or check its headers"
