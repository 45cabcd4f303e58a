"""The HTTP API of questions: asking, runs, conversations and approvals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from fastapi import APIRouter, Query
from pydantic import Field, StrictBool
from starlette.requests import Request
from starlette.responses import Response

from ferrule.agent import AgentAnswer
from ferrule.agent.answer import AgentState, CallEnded, CallStarted, PlanCreated, StepEnded, TextPiece, TurnStarted
from ferrule.agent.run import RUN_PREFIX, Run
from ferrule.core.permission import effect_tier
from ferrule.errors import SetupError, ToolNotFound
from ferrule.memory.conversation import CONVERSATION_PREFIX, ConversationMemory, Turn
from ferrule.memory.failure_history import FailureHistory
from ferrule.orchestrator.orchestrator import StrategyChosen
from ferrule.policy.approvals import Approval, ApprovalRequest, ApprovalState
from ferrule.server.authentication import Client
from ferrule.server.call_routes import ConversationId
from ferrule.server.responses import Problem, encode_event, event_stream, json_response, stream_of_task
from ferrule.server.runs import describe_whole_run
from ferrule.server.services import (
    AdminClient,
    ApprovingClient,
    CallingClient,
    Limit,
    ReadingClient,
    RequestBody,
    Services,
    ServicesOfApp,
)
from ferrule.store.spending import CostSummary, summarize_costs

router = APIRouter(prefix="/v1")

MAX_QUESTION_LENGTH: Final = 1_000_000
MAX_SCANNED_RUNS: Final = 2_000
"""Runs that are looked at to find those of one tenant."""


class AskRequest(RequestBody):
    """A question."""

    question: Annotated[str, Field(min_length=1, max_length=MAX_QUESTION_LENGTH)]
    stream: StrictBool = False
    """Answer with server-sent events: `strategy`, `plan`, `step`, `turn`, `call`, `call_ended`, `text`, `answer`."""
    conversation_id: ConversationId | None = None
    strategy: Literal["plan", "loop", "direct", "model"] | None = None
    model: str | None = None
    """One of those that `GET /v1/agent` lists; none: the usual one."""
    context: dict[str, Any] = {}


class ResumeRequest(RequestBody):
    """What a waiting run needs to know."""

    answer: str | dict[str, str] | None = None
    approve: StrictBool | None = None
    """Decides about all calls that the run waits for; needs the right to approve."""
    stream: StrictBool = False


class ApprovalDecision(RequestBody):
    """A person's decision about a call."""

    allowed: StrictBool
    reason: Annotated[str, Field(max_length=4_000)] = ""
    arguments: dict[str, Any] | None = None
    """What to call it with instead."""


# Asking


@router.get("/agent", tags=["questions"])
async def show_agent(services: ServicesOfApp, client: ReadingClient) -> Response:
    """Return which model answers questions, and which others a client may choose."""
    try:
        model = services.orchestrator(client).model.name
    except Problem:
        model = None
    currency = services.engine.costs.prices.currency
    return json_response({"model": model, "models": services.models, "currency": currency})


@router.post("/ask", tags=["questions"])
async def ask(request: Request, ask: AskRequest, services: ServicesOfApp, client: CallingClient) -> Response:
    """Answer a question."""
    if ask.stream:
        events = _stream_answer(client, lambda listener: answer_question(services, client, ask, listener))
        return event_stream(events, request)

    async def respond() -> Response:
        result = await answer_question(services, client, ask, None)
        return json_response(describe_answer(result, client))

    return await services.idempotent_requests.respond(request, client, ask.model_dump(), respond)


async def answer_question(
    services: Services, client: Client, ask: AskRequest, listener: Callable[[Any], None] | None
) -> AgentAnswer:
    """Answer a question in the client's name."""
    orchestrator, task = services.orchestrator(client, ask.model), asyncio.current_task()
    if ask.conversation_id:
        await services.read_conversation(ask.conversation_id, client)

    def on_event(event: Any) -> None:
        if isinstance(event, StrategyChosen) and task is not None:
            services.track_run(event.run_id, task)
        if listener is not None:
            listener(event)

    async with client.calls.slot():
        return await orchestrator.process_task(
            ask.question,
            ask.context,
            strategy=ask.strategy,
            conversation_id=client.add_tenant(ask.conversation_id or uuid4().hex),
            on_event=on_event,
        )


def describe_answer(result: AgentAnswer, client: Client) -> dict[str, Any]:
    described = result.to_dict()
    described["conversation_id"] = described["conversation_id"].removeprefix(f"{client.tenant}/")
    return described


def _stream_answer(client: Client, answer: Callable[[Callable[[Any], None]], Any]) -> AsyncIterator[bytes]:
    async def work(send: Callable[[bytes], None]) -> None:
        def forward(event: Any) -> None:
            if (described := describe_event(event)) is not None:
                send(encode_event(*described))

        send(encode_event("answer", describe_answer(await answer(forward), client)))

    return stream_of_task(work)


def describe_event(event: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the name and data of an event of a run; None for events that clients do not get."""
    match event:
        case StrategyChosen():
            return "strategy", {"strategy": event.strategy, "reason": event.reason, "run_id": event.run_id}
        case PlanCreated():
            return "plan", {"plan": event.plan.to_dict()}
        case StepEnded():
            return "step", event.result.to_dict()
        case TurnStarted():
            return "turn", {"number": event.number}
        case TextPiece():
            return "text", {"text": event.text}
        case CallStarted():
            return "call", {"id": event.call.id, "name": event.call.name, "arguments": event.call.arguments}
        case CallEnded():
            return "call_ended", event.step.to_dict()
    return None


# Runs


@router.get("/runs", tags=["runs"])
async def list_runs(
    services: ServicesOfApp,
    client: ReadingClient,
    state: AgentState | None = None,
    text: Annotated[str | None, Query(description="Only runs whose question or answer contains this.")] = None,
    limit: Limit = 50,
) -> Response:
    """List runs, the latest first."""
    streams, visibility = await services.store.list_streams(RUN_PREFIX), services.visibility(client)
    runs: list[dict[str, Any]] = []
    for stream, written_at in list(streams.items())[:MAX_SCANNED_RUNS]:
        summary = await services.run_summaries.get(stream.removeprefix(RUN_PREFIX), written_at)
        if not visibility.shows_run(summary.binding):
            continue
        run = summary.described
        words = f"{run['task']}\n{run['text']}".casefold()
        if state in (None, run["state"]) and (text is None or text.casefold() in words):
            runs.append(run)
        if len(runs) == limit:
            break
    return json_response({"runs": runs})


@router.get("/runs/{run_id}", tags=["runs"])
async def show_run(run_id: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """Show a run: its history, its plan, and its messages in the format of OpenAI's API."""
    await _require_run(run_id, services, client)
    return json_response(await describe_whole_run(run_id, services.store, client.tenant))


@router.post("/runs/{run_id}/resume", tags=["runs"])
async def resume_run(
    run_id: str, resume: ResumeRequest, request: Request, services: ServicesOfApp, client: CallingClient
) -> Response:
    """Continue a run that waits for a person or was interrupted."""
    await _require_run(run_id, services, client)
    if resume.approve is not None:
        client.require("approve")

    async def answer(listener: Callable[[Any], None] | None) -> AgentAnswer:
        continued = services.continuations.find(run_id)
        if continued is not None and resume.answer is None and resume.approve is None:
            return await continued.join(listener)
        task = asyncio.current_task()
        if task is not None:
            services.track_run(run_id, task)
        async with client.calls.slot():
            orchestrator = await services.orchestrator_of_run(run_id, client)
            if resume.approve is not None:
                await _decide_all(run_id, resume.approve, services, client)
            return await orchestrator.resume(run_id, resume.answer, on_event=listener)

    if resume.stream:
        return event_stream(_stream_answer(client, answer), request)

    async def respond() -> Response:
        return json_response(describe_answer(await answer(None), client))

    return await services.idempotent_requests.respond(request, client, [run_id, resume.model_dump()], respond)


async def _decide_all(run_id: str, allowed: bool, services: Services, client: Client) -> None:
    """Decide about the calls that a run waits for, in the client's name."""
    approvals = services.engine.approvals
    run = await Run.load_and_detect_interruption(run_id, services.store)
    for approval_id in dict.fromkeys(request.approval_id for request in run.approvals.values()):
        state = (await approvals.get(approval_id)).state
        if state == "pending" or (state == "approved" and not allowed):
            await approvals.record_decision(approval_id, allowed, by=client.name)


@router.post("/runs/{run_id}/cancel", tags=["runs"])
async def cancel_run(run_id: str, services: ServicesOfApp, client: CallingClient) -> Response:
    """Stop a run that is in progress on any server of the store. It can be resumed."""
    await _require_run(run_id, services, client)
    if not await services.fleet.cancel_run(run_id):
        raise Problem(409, f"The run {run_id!r} is not in progress.")
    return json_response({"run_id": run_id, "cancelled": True})


async def _require_run(run_id: str, services: Services, client: Client) -> None:
    store = services.store
    entries = await store.read_entries(RUN_PREFIX + run_id)
    binding = await ConversationMemory(store).get_run_binding(run_id) or {}
    if not entries or not services.visibility(client).shows_run(binding):
        raise Problem(404, f"There is no run {run_id!r}.")


@router.get("/conversations", tags=["questions"])
async def list_conversations(services: ServicesOfApp, client: ReadingClient, limit: Limit = 50) -> Response:
    """List the conversations of the client's tenant, the latest first, each with its first question."""
    store = services.store
    visibility = services.visibility(client)
    prefix = CONVERSATION_PREFIX + client.add_tenant("")
    conversations: list[dict[str, Any]] = []
    for stream in await store.list_streams(prefix):
        conversation_id = stream.removeprefix(prefix)
        if "/" in conversation_id:  # of a tenant
            continue
        turns = await ConversationMemory(store).create_snapshot(client.add_tenant(conversation_id)).turns()
        if turns and visibility.shows_conversation(turns):
            first, last = turns[0], turns[-1]
            conversations.append(
                {"conversation_id": conversation_id, "question": first.question, "at": last.at, "state": last.state}
            )
        if len(conversations) == limit:
            break
    return json_response({"conversations": conversations})


@router.get("/conversations/{conversation_id}", tags=["questions"])
async def show_conversation(conversation_id: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """Return the questions and answers of a conversation."""
    turns = await services.read_conversation(conversation_id, client)
    described_turns = [await _describe_turn(turn, services) for turn in turns]
    described: dict[str, Any] = {"conversation_id": conversation_id, "turns": described_turns}
    since = datetime.fromtimestamp(min((turn.at for turn in turns), default=0.0), UTC)
    keys = [client.add_tenant(conversation_id)]
    costs = await services.store.query(summarize_costs, "conversation", since, keys=keys)
    return json_response({**described, "costs": costs.get(keys[0], CostSummary()).to_dict()})


async def _describe_turn(turn: Turn, services: Services) -> dict[str, Any]:
    """Return a turn; without an answer it has the state of its run, whose process may be gone."""
    described = asdict(turn)
    if turn.state == "running" and turn.run_id:
        with suppress(SetupError):  # the run has not begun
            run = await Run.load_and_detect_interruption(turn.run_id, services.store)
            described["state"] = run.state.value
    return described


@router.get("/failures", tags=["runs"])
async def list_failures(services: ServicesOfApp, client: ReadingClient, tool: str | None = None) -> Response:
    """Return what was learned from failed calls: patterns without values."""
    history = await _read_failures(services, client)
    visibility, snapshot = services.visibility(client), services.engine.registry.snapshot()
    patterns = [
        each for each in history.patterns(tool) if visibility.shows_failure(each.tool_id, each.action, snapshot)
    ]
    return json_response({"failures": [{"key": pattern.key, **asdict(pattern)} for pattern in patterns]})


@router.delete("/failures", tags=["runs"])
async def forget_failures(
    services: ServicesOfApp, client: AdminClient, tool: str | None = None, key: str | None = None
) -> Response:
    """Forget what was learned from failures of one tool, or one pattern, or everything."""
    history = await _read_failures(services, client)
    forgotten = await history.forget(tool, key)
    await services.audit.write(client.principal, "forget_failures", tool or key or "", patterns=forgotten)
    return json_response({"forgotten": forgotten})


class FailureChange(RequestBody):
    """A change of what was learned."""

    pinned: StrictBool
    """Whether the pattern stays until it is deleted."""


@router.patch("/failures/{key}", tags=["runs"])
async def change_failure(key: str, change: FailureChange, services: ServicesOfApp, client: AdminClient) -> Response:
    """Pin a pattern, so that it never expires, or let it expire again."""
    history = await _read_failures(services, client)
    pattern = await history.pin(key, pinned=change.pinned)
    if pattern is None:
        raise Problem(404, f"There is no pattern {key!r}.")
    await services.audit.write(
        client.principal, "pin_failure" if change.pinned else "unpin_failure", pattern.tool_id, key=key
    )
    return json_response({"key": pattern.key, **asdict(pattern)})


async def _read_failures(services: Services, client: Client) -> FailureHistory:
    """Return what this server's runs use, with what other processes have learned and forgotten."""
    history = services.library.get_failure_history(client.tenant)
    await history.reload()
    return history


# Approvals


@router.get("/approvals", tags=["approvals"])
async def list_approvals(
    services: ServicesOfApp,
    client: ReadingClient,
    state: ApprovalState | None = "pending",
    run_id: str | None = None,
    limit: Limit = 100,
) -> Response:
    """List approval requests, the newest first: the client's own, or all for one that may approve."""
    visibility = services.visibility(client)
    approvals, count = services.engine.approvals, limit
    while True:
        requests = await approvals.list_requests(state=state, run_id=run_id, tenant=visibility.tenant, limit=count)
        visible = [request for request in requests if visibility.shows_request(request)]
        if len(visible) >= limit or len(requests) < count:
            break
        count *= 4  # the newest were hidden
    return json_response({"approvals": [_describe_request(request, services) for request in visible[:limit]]})


@router.get("/approvals/{approval_id}", tags=["approvals"])
async def show_approval(approval_id: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """Show an approval request."""
    return json_response(_describe_request(await _find_request(approval_id, services, client), services))


@router.post("/approvals/{approval_id}", tags=["approvals"])
async def decide_approval(
    approval_id: str, decision: ApprovalDecision, services: ServicesOfApp, client: ApprovingClient
) -> Response:
    """Approve or refuse a call. A run then continues automatically; a client repeats its call."""
    await _find_request(approval_id, services, client)
    approval = Approval(allowed=decision.allowed, reason=decision.reason, arguments=decision.arguments)
    try:
        decided = await services.engine.approvals.record_decision(approval_id, approval, by=client.name)
    except SetupError as error:
        raise Problem(409, str(error)) from None
    return json_response(decided.to_dict())


async def _find_request(approval_id: str, services: Services, client: Client) -> ApprovalRequest:
    try:
        request = await services.engine.approvals.get(approval_id)
    except SetupError:
        request = None
    if request is None or not services.visibility(client).shows_request(request):
        raise Problem(404, f"There is no approval request {approval_id!r}.")
    return request


def _describe_request(request: ApprovalRequest, services: Services) -> dict[str, Any]:
    """Return a request with what a person must know of the tool: what it does, and whether it has changed."""
    described: dict[str, Any] = {**request.to_dict(), "tool": None}
    try:
        tool, capability = services.engine.registry.find(request.tool_id, request.action)
    except ToolNotFound:
        return described
    described["tool"] = {
        "description": capability.description,
        "parameters": capability.schema,
        "effect": effect_tier(tool.spec.effects_of(capability)),
        "source": tool.source,
        "changes": capability.changes,
        "secrets": sorted(capability.secret_names),
        "is_same_version": tool.fingerprint == request.fingerprint,
    }
    return described
