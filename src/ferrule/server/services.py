"""What the routes of the HTTP server work with, and who is asking."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from hashlib import scrypt, sha256
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar
from uuid import uuid4

import orjson
from fastapi import Depends, Request
from starlette.responses import Response, StreamingResponse

from ferrule.core.aio import ProgressQueue
from ferrule.core.content import encode_json
from ferrule.core.permission import CallPolicy, Principal
from ferrule.errors import StoreError, ToolNotFound
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.conversation import ConversationMemory, Turn
from ferrule.orchestrator import Orchestrator, OrchestratorResult
from ferrule.policy.policy import Permissions
from ferrule.server.audit import AuditLog
from ferrule.server.authentication import Client
from ferrule.server.call_limits import CallLimits
from ferrule.server.continuations import Continuations
from ferrule.server.fleet import ServerFleet
from ferrule.server.metrics import CallMetrics, LimitSamples
from ferrule.server.problems import Problem, problem_of_error
from ferrule.server.run_details import RunSummaries
from ferrule.server.store_changes import StoreChanges
from ferrule.server.tokens import LOCAL_AGENT, AccessToken, Permission, Tokens
from ferrule.server.visibility import Visibility
from ferrule.store import client_requests
from ferrule.store.database import StoreDatabase
from ferrule.store.tokens import has_token

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("ferrule.server")

MakeOrchestrator = Callable[[Principal | None], Orchestrator]
KEEPALIVE_INTERVAL: Final = 15.0
"""Seconds after which a comment is sent on a quiet stream, so that proxies do not close it."""
MAX_UNREAD_PROGRESS: Final = 1_000_000
"""Bytes of the progress of one stream that wait for its client."""
MAX_KEY_LENGTH: Final = 200
KEY_LIFETIME: Final = 86_400.0
STORE_DELAYS: Final = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts to claim an idempotency key or to store its response while the database is away."""
STORE_CHECK_TIMEOUT: Final = 5.0
SLOW_DIGEST: Final = "scrypt:"
"""The prefix of such digests."""


class Services:
    """The parts of a running server."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        tokens: Tokens,
        limits: CallLimits,
        make_orchestrator: MakeOrchestrator | None = None,
        policy: CallPolicy | None = None,
        models: Mapping[str, MakeOrchestrator] | None = None,
        internal_url: str | None = None,
        private_socket: Path | None = None,
    ) -> None:
        """`policy` decides about the clients' calls instead of the library's. `models` are those that clients may
        choose instead of the usual one, by name. At `internal_url` the other servers of the store reach this one, at
        `private_socket` those that share its port.
        """
        self.library, self.tokens, self.policy, self._limits = library, tokens, policy, limits
        self.metrics = CallMetrics(library.engine)
        self.limit_samples = LimitSamples(library.engine, self.metrics)
        self.changes = StoreChanges(library.engine.store)
        self.fleet = ServerFleet(
            library.engine,
            cancel_run=self.cancel_run,
            on_news=self.changes.look_now,
            internal_url=internal_url,
            private_socket=private_socket,
        )
        self.continuations = Continuations(library.engine, self._continue_run, lambda run_id: run_id in self._tasks)
        self.audit = AuditLog(library.engine.store)
        self.run_summaries = RunSummaries(library.engine.store)
        self._makers: dict[str | None, MakeOrchestrator] = {}
        if make_orchestrator is not None:
            self._makers[None] = make_orchestrator
        self._makers.update((models or {}).items())
        self._orchestrators: dict[tuple[Principal | None, str | None], Orchestrator] = {}
        self._store_check: asyncio.Task[bool] | None = None
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        """The questions in progress on this server, by run."""

    def permissions(self, client: Client) -> Permissions:
        """What a client may call, and so may see."""
        return self.library.engine.permissions(client.principal, self.policy)

    def visibility(self, client: Client) -> Visibility:
        """What a client may see of what was done."""
        return Visibility(client, self.permissions(client))

    @property
    def models(self) -> list[str]:
        """The models that clients may choose besides the usual one."""
        return [name for name in self._makers if name is not None]

    def orchestrator(self, client: Client, model: str | None = None) -> Orchestrator:
        """Answers the questions of a client, in the name of a principal of its own."""
        return self._find_orchestrator(client.agent_principal, model)

    async def read_conversation(self, conversation_id: str, client: Client) -> tuple[Turn, ...]:
        """The turns of a conversation of the client's tenant; it is not found if the client may not see them."""
        memory = ConversationMemory(self.library.engine.store)
        turns = await memory.create_snapshot(client.add_tenant(conversation_id)).turns()
        if not self.visibility(client).shows_conversation(turns):
            raise Problem(404, f"There is no conversation {conversation_id!r}.")
        return turns

    async def orchestrator_of_run(self, run_id: str, client: Client) -> Orchestrator:
        """Continues a run in the name of who started it: who resumes or approves it lends it no rights."""
        binding = await self._read_binding(run_id)
        own = client.agent_principal
        if own is None or "principal" not in binding or own.client_id == binding.get("client_id"):
            return self._orchestrator_of_binding(binding, own)
        owner = await self._find_owner(run_id, binding)
        if owner is None and not client.sees_all_tenants:
            raise _ended_owner(run_id, binding)
        return self._orchestrator_of_binding(binding, None if owner is None else owner.agent_principal)

    async def _continue_run(self, run_id: str, listener: Callable[[Any], None]) -> OrchestratorResult:
        """Continue a run that nobody waits for, within the limits of who started it."""
        if (task := asyncio.current_task()) is not None:
            self.track_run(run_id, task)
        binding = await self._read_binding(run_id)
        owner = await self._find_owner(run_id, binding)
        if owner is not None:
            async with self._limits.find(owner).slot():
                orchestrator = self._orchestrator_of_binding(binding, owner.agent_principal)
                return await orchestrator.resume(run_id, on_event=listener)
        orchestrator = self._orchestrator_of_binding(binding, None)
        if binding.get("rules") != orchestrator.rules_digest:
            raise Problem(
                409, f"The run {run_id!r} was started with other rules, in a program or a terminal: continue it there."
            )
        return await orchestrator.resume(run_id, on_event=listener)

    async def _read_binding(self, run_id: str) -> Mapping[str, Any]:
        return await ConversationMemory(self.library.engine.store).get_run_binding(run_id) or {}

    def _orchestrator_of_binding(self, binding: Mapping[str, Any], principal: Principal | None) -> Orchestrator:
        """With the model that began the run, if it can still be chosen."""
        candidates = [self._find_orchestrator(principal, model) for model in (None, *self.models)]
        same_model = (each for each in candidates if each.model.name == binding.get("model"))
        return next(same_model, candidates[0])

    async def _find_owner(self, run_id: str, binding: Mapping[str, Any]) -> AccessToken | None:
        """The token that a run was started with; None for the agent of who runs this server."""
        if [binding.get(name) for name in ("principal", "tenant", "client_id")] == [LOCAL_AGENT.label, "", ""]:
            return None
        for token in await self.tokens.list_tokens(with_external_sessions=True):
            if token.root_id == binding.get("client_id") and self.tokens.is_valid(token) and token.may("call"):
                return token
        raise _ended_owner(run_id, binding)

    def _find_orchestrator(self, principal: Principal | None, model: str | None) -> Orchestrator:
        if None not in self._makers:
            raise Problem(501, "This server answers no questions: it was started without a model.")
        if model not in self._makers:
            names = ", ".join(map(repr, self.models)) or "none"
            raise Problem(404, f"The model {model!r} cannot be chosen here. [server] models allows: {names}.")
        if (principal, model) not in self._orchestrators:
            orchestrator = self._makers[model](principal)
            if self.policy is not None and orchestrator.policy is not self.policy:
                raise Problem(
                    500, "The server has a policy: make its orchestrators with the same one, Orchestrator(policy=…)."
                )
            self._orchestrators[principal, model] = orchestrator
        return self._orchestrators[principal, model]

    async def aclose(self) -> None:
        for orchestrator in self._orchestrators.values():
            await orchestrator.aclose()

    async def check_store(self) -> None:
        """Raise StoreError unless the store answers and has accepted all records.

        One look is for all who ask meanwhile: nobody needs a token to ask.
        """
        if self._store_check is None or self._store_check.done():
            self._store_check = asyncio.create_task(self.library.engine.store.query(has_token))
        if not (await asyncio.wait({self._store_check}, timeout=STORE_CHECK_TIMEOUT))[0]:
            raise StoreError(f"it has not answered for {STORE_CHECK_TIMEOUT:g} s")
        self._store_check.result()

    # Runs in progress

    def track_run(self, run_id: str, task: asyncio.Task[Any]) -> None:
        if run_id in self._tasks:  # a second request for it, which its lock refuses: the first can still be cancelled
            return
        self._tasks[run_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run_id, None))

    def cancel_run(self, run_id: str) -> bool:
        """Stop a run that is in progress on this server; False when it is not."""
        task = self._tasks.get(run_id)
        return task is not None and task.cancel()

    # Requests with an idempotency key

    async def respond_once(
        self,
        request: Request,
        client: Client,
        content: Any,
        respond: Callable[[], Coroutine[Any, Any, Response]],
        calls: Iterable[tuple[str, str | None, Mapping[str, Any]]] = (),
    ) -> Response:
        """The response; the same one for each repetition of a request with the same `Idempotency-Key`.

        It is stored like a record, without secrets: also without those in the arguments of the `calls` that it makes,
        which are a tool, an action and arguments each.
        """
        key = request.headers.get("idempotency-key")
        if key is None:
            return await respond()
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise Problem(400, f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters.")
        store, principal = self.library.engine.store, f"{client.tenant}/{client.name}"
        arguments_of_calls = [(self._find_secret_names(name, action), arguments) for name, action, arguments in calls]
        has_secrets = any(names for names, _ in arguments_of_calls) or store.redaction.redact(content) != content
        make_digest = partial(_digest_request, [request.url.path, content], f"{principal}/{key}")
        digest = await make_digest(is_slow=has_secrets)
        claim_id = uuid4().hex
        earlier = await self._query_when_available(
            client_requests.claim_request, principal, key, digest, claim_id, lifetime=KEY_LIFETIME
        )
        if earlier is not None:
            # A server with other tools or other secrets may have chosen the other digest.
            is_same = earlier["digest"] == await make_digest(is_slow=earlier["digest"].startswith(SLOW_DIGEST))
            return _repeat_response(earlier, key, is_same=is_same)
        try:
            response = await respond()
        except BaseException as error:
            if isinstance(error, Exception) and problem_of_error(error).status < 500:  # nothing was executed
                await self._query_when_available(client_requests.release_request, principal, key, claim_id)
            raise
        if response.status_code >= 400:  # nothing was executed either: it may be tried again
            await self._query_when_available(client_requests.release_request, principal, key, claim_id)
            return response
        secrets = {
            text for names, arguments in arguments_of_calls for text in store.redaction.find_secrets(arguments, names)
        }
        body = self._redact_stored_response(bytes(response.body).decode(), sorted(secrets, key=len, reverse=True))
        try:
            await self._query_when_available(
                client_requests.complete_request, principal, key, response.status_code, body
            )
        except StoreError as error:  # the call was made: the client gets its answer, and a repetition is refused
            logger.error("key=<%s>, error=<%s> | the response of a request is not stored", key, error)
        return response

    async def _query_when_available(
        self, function: Callable[Concatenate[StoreDatabase, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Ask the store, and wait for as long as a restart of the database takes."""
        store = self.library.engine.store
        for delay in STORE_DELAYS:
            try:
                return await store.query(function, *arguments, **options)
            except StoreError:
                await asyncio.sleep(delay)
        return await store.query(function, *arguments, **options)

    def _find_secret_names(self, name: str, action: str | None) -> frozenset[str]:
        try:
            return self.library.engine.registry.find(name, action)[1].secret_names
        except ToolNotFound:
            return frozenset()

    def _redact_stored_response(self, body: str, secrets: Sequence[str]) -> str:
        """The body of a response without secrets, also those of the run that it is about."""
        store, content = self.library.engine.store, json.loads(body)
        cleaned = store.redaction.redact(content, tuple(secrets))
        for members in (
            content,
            content.get("ferrule"),
            content.get("metadata"),
        ):  # where our and OpenAI's formats say it
            if isinstance(members, dict) and isinstance(run_id := members.get("run_id"), str):
                cleaned = store.get_run_secrets(run_id).redact(cleaned)
        return body if cleaned == content else json.dumps(cleaned)


def _ended_owner(run_id: str, binding: Mapping[str, Any]) -> Problem:
    return Problem(
        409, f"The run {run_id!r} was started by {binding.get('principal')!r}, whose token is not valid now."
    )


async def _digest_request(content: Any, salt: str, *, is_slow: bool) -> str:
    """Differs for any two requests. A slow one is for those with secrets, so that these are not found by trying."""
    data = encode_json(content, escape_surrogates=True)
    if not is_slow:
        return sha256(data).hexdigest()
    encoded = salt.encode("utf-8", "surrogatepass")
    digest = await asyncio.to_thread(scrypt, data, salt=encoded, n=2**14, r=8, p=1, dklen=32)
    return SLOW_DIGEST + digest.hex()


def _repeat_response(earlier: dict[str, Any], key: str, *, is_same: bool) -> Response:
    if not is_same:
        raise Problem(422, f"The Idempotency-Key {key!r} was used for another request. Use a new one.")
    if earlier["response"] is None:
        raise Problem(
            409,
            f"The request with the Idempotency-Key {key!r} has not ended yet, or its server died while it ran.",
            headers={"Retry-After": "1"},
        )
    headers = {"Idempotency-Replayed": "true"}
    return Response(earlier["response"], earlier["status"], headers=headers, media_type="application/json")


# Dependencies of routes


def get_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def get_client(request: Request) -> Client:
    client: Client | None = request.scope["state"]["client"]
    if client is None:
        raise Problem(401, "This needs a valid token.")
    return client


def _require(permission: Permission) -> Any:
    def find_client(request: Request) -> Client:
        client = get_client(request)
        client.require(permission)
        return client

    return Depends(find_client)


ServicesOfApp = Annotated[Services, Depends(get_services)]
AnyClient = Annotated[Client, Depends(get_client)]
ReadingClient = Annotated[Client, _require("read")]
CallingClient = Annotated[Client, _require("call")]
ApprovingClient = Annotated[Client, _require("approve")]
AdminClient = Annotated[Client, _require("administer")]


# Server-sent events


class SendEvent(Protocol):
    """Sends an event to a client. Progress that the client does not read is dropped, the oldest first."""

    def __call__(self, event: bytes, /, *, is_progress: bool = False) -> None: ...


def encode_event(name: str, data: Any, event_id: str | None = None) -> bytes:
    try:
        content = orjson.dumps(data)
    except TypeError:
        content = encode_json(data)
    head = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    return head + b"event: " + name.encode() + b"\ndata: " + content + b"\n\n"


def event_stream(events: AsyncIterator[bytes], request: Request) -> StreamingResponse:
    if "idempotency-key" in request.headers:  # to ignore it would execute a repeated request again
        raise Problem(400, "A streamed response is not stored: send the request without Idempotency-Key.")
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(_keep_alive(events), media_type="text/event-stream", headers=headers)


async def _keep_alive(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events, with a comment whenever none came for a while."""
    pending = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=KEEPALIVE_INTERVAL)
            if not done:
                yield b": keep-alive\n\n"
                continue
            event = pending.result()
            if event is None:
                return
            yield event
            pending = asyncio.ensure_future(anext(events, None))
    finally:
        pending.cancel()
        await asyncio.wait({pending})
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


async def stream_of_task(work: Callable[[SendEvent], Coroutine[Any, Any, None]]) -> AsyncIterator[bytes]:
    """The events that a task sends; closing the iterator ends the task."""
    queue = ProgressQueue[bytes | None](MAX_UNREAD_PROGRESS, lambda event: len(event or b""))
    task = asyncio.create_task(work(queue.add))
    task.add_done_callback(lambda _: queue.add(None))
    try:
        while (event := await queue.get()) is not None:
            yield event
    finally:
        task.cancel()
        await asyncio.wait({task})
