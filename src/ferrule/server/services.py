"""What the routes of the HTTP server work with, and who is asking."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict

from ferrule.agent import AgentAnswer
from ferrule.core.permission import CallPolicy, Principal
from ferrule.errors import StoreError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.conversation import ConversationMemory, Turn
from ferrule.orchestrator import Orchestrator
from ferrule.policy.policy import Permissions
from ferrule.server.authentication import Client, Visibility
from ferrule.server.call_limits import CallLimits
from ferrule.server.fleet import ServerFleet
from ferrule.server.idempotency import IdempotentRequests
from ferrule.server.mcp.direct_calls import McpSessions
from ferrule.server.metrics import LimitSamples, ServerMetrics
from ferrule.server.responses import Problem
from ferrule.server.runs import Continuations, RunSummaries
from ferrule.server.store_changes import StoreChanges
from ferrule.server.tokens import LOCAL_AGENT, AccessToken, AuditLog, Permission, Tokens
from ferrule.store.tokens import has_token

logger = logging.getLogger("ferrule.server")

MakeOrchestrator = Callable[[Principal | None], Orchestrator]
STORE_CHECK_TIMEOUT: Final = 5.0


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
        internal_secrets: Sequence[str] = (),
    ) -> None:
        """`policy` decides about the clients' calls instead of the library's. `models` are those that clients may
        choose instead of the usual one, by name. At `internal_url` the other servers of the store reach this one, at
        `private_socket` those that share its port; by `internal_secrets` the servers know each other.
        """
        self.library, self.tokens, self.policy, self._limits = library, tokens, policy, limits
        self.engine, self.store = library.engine, library.engine.store
        self.changes = StoreChanges(self.store)
        self.fleet = ServerFleet(
            self.engine,
            cancel_run=self.cancel_run,
            on_news=self.changes.look_now,
            write_metrics=lambda: self.metrics.write(),
            internal_url=internal_url,
            private_socket=private_socket,
            internal_secrets=internal_secrets,
        )
        self.mcp_sessions: dict[str, McpSessions] = {}
        """The sessions of MCP clients, by the paths of the servers."""
        self.metrics = ServerMetrics(
            self.engine,
            self.fleet.server_id,
            None if private_socket is None else private_socket.parent,
            lambda: {path: len(sessions) for path, sessions in self.mcp_sessions.items()},
        )
        self.limit_samples = LimitSamples(self.engine, self.metrics)
        self.continuations = Continuations(self.engine, self._continue_run, lambda run_id: run_id in self._tasks)
        self.audit = AuditLog(self.store)
        self.idempotent_requests = IdempotentRequests(self.engine)
        self.run_summaries = RunSummaries(self.store)
        self._makers: dict[str | None, MakeOrchestrator] = {}
        if make_orchestrator is not None:
            self._makers[None] = make_orchestrator
        self._makers.update((models or {}).items())
        self._orchestrators: dict[tuple[Principal | None, str | None], Orchestrator] = {}
        self._store_check: asyncio.Task[bool] | None = None
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        """The questions in progress on this server, by run."""

    def permissions(self, client: Client) -> Permissions:
        return self.engine.permissions(client.principal, self.policy)

    def visibility(self, client: Client) -> Visibility:
        """Return what a client may see of what was done."""
        return Visibility(client, self.permissions(client))

    @property
    def models(self) -> list[str]:
        """Return the models that clients may choose besides the usual one."""
        return [name for name in self._makers if name is not None]

    def orchestrator(self, client: Client, model: str | None = None) -> Orchestrator:
        """Return the orchestrator for the questions of a client, which has its own principal."""
        return self._find_orchestrator(client.agent_principal, model)

    async def read_conversation(self, conversation_id: str, client: Client) -> tuple[Turn, ...]:
        """Read a conversation of the client's tenant. Raises Problem if the client may not see it."""
        memory = ConversationMemory(self.store)
        turns = await memory.create_snapshot(client.add_tenant(conversation_id)).turns()
        if not self.visibility(client).shows_conversation(turns):
            raise Problem(404, f"There is no conversation {conversation_id!r}.")
        return turns

    async def orchestrator_of_run(self, run_id: str, client: Client) -> Orchestrator:
        """Find the orchestrator that continues a run in its owner's name: a client that resumes it lends no rights."""
        binding = await self._read_binding(run_id)
        own = client.agent_principal
        if own is None or "principal" not in binding or own.client_id == binding.get("client_id"):
            return self._orchestrator_of_binding(binding, own)
        owner = await self._find_owner(run_id, binding)
        if owner is None and not client.sees_all_tenants:
            raise _ended_owner(run_id, binding)
        return self._orchestrator_of_binding(binding, None if owner is None else owner.agent_principal)

    async def _continue_run(self, run_id: str, listener: Callable[[Any], None]) -> AgentAnswer:
        """Continue a run for which no client waits, within the limits of the token that started it."""
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
        return await ConversationMemory(self.store).get_run_binding(run_id) or {}

    def _orchestrator_of_binding(self, binding: Mapping[str, Any], principal: Principal | None) -> Orchestrator:
        """Return an orchestrator with the model that began the run, if that model can still be chosen."""
        candidates = [self._find_orchestrator(principal, model) for model in (None, *self.models)]
        same_model = (each for each in candidates if each.model.name == binding.get("model"))
        return next(same_model, candidates[0])

    async def _find_owner(self, run_id: str, binding: Mapping[str, Any]) -> AccessToken | None:
        """Find the token that a run was started with; None for this machine's agent. Raises Problem if it ended."""
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

        One query is for all requests that arrive meanwhile, because this request needs no token.
        """
        if self._store_check is None or self._store_check.done():
            self._store_check = asyncio.create_task(self.store.query(has_token))
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
        """Stop a run that is in progress on this server. Returns False for other runs."""
        task = self._tasks.get(run_id)
        return task is not None and task.cancel()


def _ended_owner(run_id: str, binding: Mapping[str, Any]) -> Problem:
    return Problem(
        409, f"The run {run_id!r} was started by {binding.get('principal')!r}, whose token is not valid now."
    )


# Parameters of routes


class RequestBody(BaseModel):
    """The JSON of a request, which has only the members that its model names."""

    model_config = ConfigDict(extra="forbid")


def _parse_iso_time(value: Any) -> Any:
    """Read a text. A number would be taken as seconds since 1970, although the API says nothing of it."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


Moment = Annotated[datetime, BeforeValidator(_parse_iso_time)]
Limit = Annotated[int, Query(ge=1, le=1_000)]


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
