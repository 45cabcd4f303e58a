"""The entry point for questions: small talk is answered directly, repeated questions from the cache, others with tools.

question ─► fast path ─► history snapshot ─► request cache ─► plan, loop or direct ─► answer
               │                                  │                                     │
               └──────────────── answer ◄─────────┘              memory and cache ◄─────┘
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from uuid import uuid4

from ferrule.agent import AgentState, Person, RunLimits
from ferrule.agent.answer import AgentAnswer, log_listener_errors
from ferrule.agent.calls import Answers, ApprovalDecisions
from ferrule.agent.control_tools import HISTORY_TOOL, history_tool
from ferrule.core.events import ToolEngineEventType
from ferrule.core.messages import Message, Usage
from ferrule.core.model import Model, can_reason
from ferrule.core.permission import CallPolicy, Principal
from ferrule.core.spec import Tool
from ferrule.errors import SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.conversation import DEFAULT_CONVERSATION, ConversationMemory
from ferrule.models.choose import choose_model
from ferrule.models.retry import close_model
from ferrule.orchestrator.request_cache import EventListener, RequestCache, SharedRuns, digest_configuration
from ferrule.orchestrator.small_talk import (
    ABOUT_HISTORY,
    NON_QUESTIONS,
    SmallTalk,
    detect_small_talk,
    reply_to_small_talk,
)
from ferrule.orchestrator.strategy_runner import StrategyRunner, TaskRequest, WorkflowKind, check_strategy
from ferrule.policy.policy import Policy
from ferrule.store import ToolCallSummary
from ferrule.texts.language import detect_language
from ferrule.workflow import Workflow

logger = logging.getLogger("ferrule.orchestrator")

DEFAULT_CACHE_TTL: Final = 300.0


@dataclass(frozen=True, slots=True)
class SharedResult:
    """The result of a run that several callers may wait for."""

    result: AgentAnswer
    for_all: AgentAnswer | None
    """The result for other conversations; None if something in it belongs to one conversation."""


class Orchestrator:
    """Answers questions, many of them concurrently."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model | str | None = None,
        *,
        workflow: WorkflowKind = "simple",
        strategy: str | None = None,
        policy: CallPolicy | None = None,
        person: Person | None = None,
        limits: RunLimits | None = None,
        tools: Collection[str] | None = None,
        instructions: str = "",
        principal: Principal | None = None,
        cache_ttl: float | None = DEFAULT_CACHE_TTL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`strategy` is `plan`, `loop` (the default), `direct`, or `model` to let the model choose.

        `workflow` executes plans: `simple`, `langgraph`, or `auto` for LangGraph if it is installed. `cache_ttl` is how
        long answers are cached, in seconds; None disables the cache. `limits` apply to plans and to the loop; their
        `price` gives the cost of an answer. `tools` restricts the orchestrator to these tools. `principal` makes its
        calls. Cached answers are not shared with orchestrators of another principal, policy or configuration.
        """
        check_strategy(strategy)
        self.library = library
        self._owns_model = model is None or isinstance(model, str)
        self.model = choose_model(model)
        self.memory = ConversationMemory(library.engine.store)
        self._strategy, self._limits = strategy, limits
        principal = library.with_tenant(principal or Principal(kind="agent", name="orchestrator"))
        self._principal = principal if tools is None else principal.restricted_to(tools)
        self.policy = policy
        self._cache = RequestCache(library.engine.store, cache_ttl, clock=clock)
        self._runner = StrategyRunner(
            library,
            self.model,
            self.memory,
            workflow=workflow,
            policy=policy,
            person=person,
            limits=limits,
            tools=None if tools is None else {*tools, HISTORY_TOOL},
            instructions=instructions,
            principal=principal,
        )
        allowed = None if tools is None else sorted(tools)
        self._cache_scope = digest_configuration(
            principal,
            policy or library.engine.policy,
            allowed,
            instructions,
            workflow,
        )
        self._shared_runs: SharedRuns[SharedResult] = SharedRuns()

    @property
    def rules_digest(self) -> str:
        """Tells orchestrators apart whose runs may do different things."""
        return self._runner.rules_digest

    async def aclose(self) -> None:
        """Cancel the questions in progress and close the model if it was created here. The library stays open."""
        await self._shared_runs.aclose()
        if self._owns_model:
            await close_model(self.model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # Entry points

    async def process_task(
        self,
        task: str,
        context: Mapping[str, Any] | None = None,
        *,
        strategy: str | None = None,
        conversation_id: str | None = None,
        history: Sequence[Message] = (),
        on_event: EventListener | None = None,
    ) -> AgentAnswer:
        """Answer a question. Errors are reported in the result.

        `context` holds facts for the answer, by name. Questions without a `conversation_id` share one
        conversation. `history` are earlier messages in OpenAI's format; they take the place of the conversation in the
        store. `on_event` receives `StrategyChosen`, then the events of the workflow or the agent.
        """
        check_strategy(strategy)
        if not task.strip():
            raise SetupError("The question is empty. Ask something.")
        started = time.perf_counter()
        small_talk = detect_small_talk(task, has_language_model=can_reason(self.model))
        conversation_id = conversation_id or DEFAULT_CONVERSATION
        await self.memory.synchronize(conversation_id)
        snapshot = self.memory.create_snapshot(conversation_id)
        is_question = small_talk not in NON_QUESTIONS | ABOUT_HISTORY
        turn = self.memory.add_question(
            snapshot.conversation_id, task, is_question=is_question, principal=self._principal.label
        )
        request = TaskRequest(
            task=task,
            context=context or {},
            strategy=strategy or self._strategy,
            snapshot=snapshot,
            turn=turn,
            messages=tuple(history),
        )
        types = ToolEngineEventType.QUESTION_STARTED, ToolEngineEventType.QUESTION_ENDED
        with self.library.engine.events.emit_start_and_end(
            *types, self._principal, question=task, conversation_id=conversation_id
        ) as data:
            try:
                result = await self._maybe_fast_path(request, small_talk)
                if result is None:
                    result = await self._answer_question(request, log_listener_errors(on_event))
            except BaseException as error:
                self._record_failure(request, error)
                raise
            result = data["result"] = self._record_answer(request, result, time.perf_counter() - started)
        return result

    async def resume(
        self,
        run_id: str,
        answer: Answers = None,
        *,
        approvals: ApprovalDecisions = None,
        on_event: EventListener | None = None,
    ) -> AgentAnswer:
        """Continue a run that is waiting or was interrupted by a crash.

        `answer` is the answer to its question; `approvals` decides about its waiting calls.

        The workflow or agent that started the run continues it. If a plan has several questions, a single text answers
        the first one; a mapping from their ids to texts answers all.
        """
        started = time.perf_counter()
        self._ensure_history_tool()
        types = ToolEngineEventType.QUESTION_STARTED, ToolEngineEventType.QUESTION_ENDED
        with self.library.engine.events.emit_start_and_end(*types, self._principal, run_id=run_id) as data:
            result = await self._runner.resume(run_id, answer, approvals, log_listener_errors(on_event))
            bound = await self.memory.get_run_binding(run_id)
            if bound is not None:
                result = replace(result, conversation_id=bound["conversation_id"])
                self.memory.add_answer(
                    bound["conversation_id"], bound["turn"], result.answer, state=result.state.value, run_id=run_id
                )
            result = data["result"] = self._finalize(result, time.perf_counter() - started)
        return result

    @property
    def workflow(self) -> Workflow:
        """Return the workflow that executes plans."""
        return self._runner.workflow

    # Processing steps

    async def _maybe_fast_path(self, request: TaskRequest, small_talk: SmallTalk | None) -> AgentAnswer | None:
        """Return the answer to small talk, without a model, or None for everything else.

        With instructions of the caller, such as a form for the answer, a fixed reply would be wrong.
        """
        if small_talk is None or "instructions" in request.context:
            return None
        started = time.perf_counter()
        language, tools = detect_language(request.task), self._list_tools()
        turns = await request.snapshot.turns() if small_talk in ABOUT_HISTORY else ()
        answer = reply_to_small_talk(small_talk, tools, turns, language)
        return AgentAnswer(
            question=request.task,
            text=answer,
            state=AgentState.FINISHED,
            strategy="fast_path",
            summary=ToolCallSummary(conversation_id="").to_brief(),
            timings={"fast_path": time.perf_counter() - started},
        )

    def _list_tools(self) -> Collection[Tool]:
        """Return the tools that the orchestrator's calls may use."""
        engine = self.library.engine
        permissions = engine.permissions(self._principal, self.policy)
        return permissions.select_tools(engine.registry.snapshot()).values()

    async def _answer_question(self, request: TaskRequest, listener: EventListener | None) -> AgentAnswer:
        """Answer from the cache, by joining a run that is answering the same question, or by a new run."""
        self._ensure_history_tool()
        is_policy_constant = type(self.policy or self.library.engine.policy) is Policy  # others may decide anew
        if request.messages or not is_policy_constant:  # messages: the answer belongs to this conversation
            return await self._runner.run(request, listener)
        registry = self.library.engine.registry
        scope = (request.strategy, dict(request.context), self._cache_scope)
        key = self._cache.key(request.task, registry, self.model.name, *scope)
        if key is None:
            return await self._runner.run(request, listener)
        started = time.perf_counter()
        cached = await self._cache.get(key)
        lookup = time.perf_counter() - started
        if cached is not None:
            timings = {"cache": lookup}
            return replace(cached, cached=True, usage=Usage(), model_cost=0.0, tool_cost=0.0, timings=timings)
        result = await self._run_shared(key, request, listener)
        return replace(result, timings={"cache": lookup, **result.timings})

    async def _run_shared(self, key: str, request: TaskRequest, listener: EventListener | None) -> AgentAnswer:
        """Answer by one run for all callers who ask the same question now.

        Between conversations, only results that belong to no conversation are shared.
        """
        conversation_id = request.snapshot.conversation_id
        run = self._shared_runs.find(key, conversation_id)
        if run is None and (other := self._shared_runs.find_any(key)) is not None:
            shared = await other.join()  # without the listener: its events belong to the other conversation
            if shared.for_all is not None:
                return replace(shared.for_all, shared=True)
            run = self._shared_runs.find(key, conversation_id)
        if run is not None:
            return replace((await run.join(listener)).result, shared=True)
        run = self._shared_runs.start(
            key, conversation_id, lambda emit: self._run_and_cache(key, request, emit if listener else None)
        )
        return (await run.join(listener)).result

    async def _run_and_cache(self, key: str, request: TaskRequest, listener: EventListener | None) -> SharedResult:
        """Answer the question, and cache the answer if it may be cached."""
        result = await self._runner.run(request, listener)
        seconds = await self._cache.find_ttl(result, self.library.engine.registry.snapshot())
        for_all = None
        if seconds is not None and not self.memory.was_read_by(result.run_id):
            for_all = self._cache.without_secrets(result)
            if for_all is not None:
                await self._cache.add(key, for_all, seconds)
        return SharedResult(result, for_all)

    def _record_answer(self, request: TaskRequest, result: AgentAnswer, seconds: float) -> AgentAnswer:
        """Add the answer to the conversation."""
        conversation = request.snapshot.conversation_id
        self.memory.add_answer(
            conversation, request.turn, result.answer, state=result.state.value, run_id=result.run_id
        )
        return self._finalize(replace(result, question=request.task, conversation_id=conversation), seconds)

    def _finalize(self, result: AgentAnswer, seconds: float) -> AgentAnswer:
        price = self._limits.price if self._limits is not None else None
        model_cost = result.model_cost
        if price is not None and not model_cost:  # the project has no price for the model, but the caller has
            model_cost = price(result.usage)
        costs = [cost for cost in (model_cost, result.tool_cost) if cost is not None]
        result = replace(
            result,
            trace_id=uuid4().hex,
            model_cost=model_cost,
            cost=sum(costs) if costs else None,
            timings={**result.timings, "total": seconds},
        )
        logger.info(
            "trace=<%s>, run=<%s>, strategy=<%s>, state=<%s>, cached=<%s>, seconds=<%.4f> | answered",
            result.trace_id,
            result.run_id,
            result.strategy,
            result.state.value,
            result.cached,
            seconds,
        )
        return result

    def _record_failure(self, request: TaskRequest, error: BaseException) -> None:
        cancelled = isinstance(error, asyncio.CancelledError)
        text, state = ("", "cancelled") if cancelled else (str(error), "failed")
        self.memory.add_answer(request.snapshot.conversation_id, request.turn, text, state=state)

    def _ensure_history_tool(self) -> None:
        """Register the history tool at the first question, because the library may load a tool with this name."""
        if HISTORY_TOOL not in self.library.engine.registry:
            self.library.engine.register(history_tool(self.memory))
