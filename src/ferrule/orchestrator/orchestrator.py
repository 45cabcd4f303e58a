"""The door for questions: small talk at once, what is known from the cache, everything else with tools.

question ─► fast path ─► history snapshot ─► request cache ─► plan, loop or direct ─► answer
               │                                  │                                     │
               └──────────────── answer ◄─────────┘              memory and cache ◄─────┘
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from uuid import uuid4

from ferrule.agent import AgentState, Approval, ApprovalPolicy, Person, RunLimits
from ferrule.agent.prompts import language_of
from ferrule.errors import SetupError
from ferrule.library import UnifiedToolLibrary
from ferrule.memory.conversation import DEFAULT, ConversationMemory
from ferrule.messages import Usage
from ferrule.models.choose import choose_model
from ferrule.models.closing import close_model
from ferrule.models.model import Model
from ferrule.orchestrator.flights import Flights, Tell, patient
from ferrule.orchestrator.replies import reply_about_history, reply_about_tools, reply_to_greeting
from ferrule.orchestrator.request_cache import RequestCache
from ferrule.orchestrator.result import OrchestratorResult
from ferrule.orchestrator.runs import Asked, Runs, WorkflowKind
from ferrule.orchestrator.small_talk import ABOUT_HISTORY, SmallTalk, small_talk_in
from ferrule.orchestrator.strategy import check_strategy
from ferrule.store import ToolCallSummary
from ferrule.tools.conversation import HISTORY_TOOL, history_tool

logger = logging.getLogger("ferrule.orchestrator")

CACHE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Landed:
    """What came of a run that several may wait for."""

    result: OrchestratorResult
    is_for_all: bool
    """It would be the same for everybody: nothing in it belongs to one conversation."""


class Orchestrator:
    """Answers questions. One orchestrator may answer many at once."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model | str | None = None,
        *,
        workflow: WorkflowKind = "auto",
        strategy: str | None = None,
        policy: ApprovalPolicy | None = None,
        person: Person | None = None,
        limits: RunLimits | None = None,
        tools: Collection[str] | None = None,
        instructions: str = "",
        cache_ttl: float | None = CACHE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`strategy` is plan, loop, direct, or model to let the model choose; without one the question decides.

        `cache_ttl` is how long answers are kept, in seconds; None keeps none. `limits` hold for plans
        and for the loop; their `price` says what an answer cost. `tools` are the only ones it may use.
        """
        check_strategy(strategy)
        self.library = library
        self._owns_model = model is None or isinstance(model, str)
        self.model = choose_model(model) if model is None or isinstance(model, str) else model
        self.memory = ConversationMemory(library.engine.store)
        self._strategy, self._limits = strategy, limits
        self._cache = RequestCache(library.engine.store, cache_ttl, clock=clock)
        self._runs = Runs(
            library,
            self.model,
            self.memory,
            workflow=workflow,
            policy=policy,
            person=person,
            limits=limits,
            tools=None if tools is None else {*tools, HISTORY_TOOL},
            instructions=instructions,
        )
        self._held_to: dict[str, Any] = {"only tools": sorted(tools)} if tools is not None else {}
        self._held_to |= {"told before": instructions} if instructions else {}
        self._flights: Flights[_Landed] = Flights()

    async def aclose(self) -> None:
        """Give up what is being answered, and close what was opened; the library stays open."""
        await self._flights.aclose()
        await self._runs.aclose()
        if self._owns_model:
            await close_model(self.model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # The story of a question

    async def process_task(
        self,
        task: str,
        context: Mapping[str, Any] | None = None,
        *,
        strategy: str | None = None,
        conversation_id: str | None = None,
        on_event: Tell | None = None,
    ) -> OrchestratorResult:
        """Answer a question. Whatever goes wrong on the way is in the result.

        `context` is what the answer should know, by name. Without a `conversation_id` it belongs to the one
        conversation of all who name none. `on_event` is told what happens: how it will be answered
        (`StrategyChosen`), then the events of the workflow or of the agent.
        """
        check_strategy(strategy)
        if not task.strip():
            raise SetupError("There is nothing to answer: the question is empty.")
        began = time.perf_counter()
        small_talk = small_talk_in(task)
        snapshot = self.memory.create_snapshot(conversation_id or DEFAULT)
        is_question = small_talk is not SmallTalk.GREETING and small_talk not in ABOUT_HISTORY
        turn = self.memory.ask(snapshot.conversation_id, task, is_question=is_question)
        asked = Asked(
            task=task, context=context or {}, strategy=strategy or self._strategy, snapshot=snapshot, turn=turn
        )
        try:
            result = await self._maybe_fast_path(asked, small_talk) or await self._answer(asked, patient(on_event))
        except BaseException as error:
            self._note_failure(asked, error)
            raise
        return self._finished(asked, result, time.perf_counter() - began)

    async def resume(
        self,
        run_id: str,
        answer: Mapping[str, str] | str | None = None,
        *,
        approvals: Mapping[str, Approval | bool] | bool | None = None,
        on_event: Tell | None = None,
    ) -> OrchestratorResult:
        """Go on with a run that waits, or that a crash interrupted: `answer` what it asked, or allow what it wants.

        It is gone on with by what began it: the same workflow, or the agent. Of several questions of a plan a single
        text answers the first; a map of their ids and texts answers all.
        """
        began = time.perf_counter()
        self._have_history_tool()
        result = await self._runs.resume(run_id, answer, approvals, patient(on_event))
        bound = await self.memory.bound_to(run_id)
        if bound is not None:
            result = replace(result, conversation_id=bound["conversation_id"])
            self.memory.answer(
                bound["conversation_id"], bound["turn"], result.answer, state=result.state.value, run_id=run_id
            )
        return self._told(result, time.perf_counter() - began)

    # The steps of a question

    async def _maybe_fast_path(self, asked: Asked, small_talk: SmallTalk | None) -> OrchestratorResult | None:
        """The answer to small talk, without a model; None for everything else."""
        if small_talk is None:
            return None
        began = time.perf_counter()
        language, tools = language_of(asked.task), self.library.engine.registry.snapshot()
        if small_talk is SmallTalk.GREETING:
            answer = reply_to_greeting(tools, language)
        elif small_talk is SmallTalk.CAPABILITIES:
            answer = reply_about_tools(tools, language)
        else:
            answer = reply_about_history(small_talk, await asked.snapshot.turns(), language)
        return OrchestratorResult(
            question=asked.task,
            answer=answer,
            state=AgentState.FINISHED,
            strategy="fast_path",
            tool_usage_summary=ToolCallSummary(conversation_id="").to_brief(),
            timings={"fast_path": time.perf_counter() - began},
        )

    async def _answer(self, asked: Asked, tell: Tell | None) -> OrchestratorResult:
        """From the cache; else by the run of somebody who asks the same just now; else by a run of its own."""
        self._have_history_tool()
        registry = self.library.engine.registry
        known_too = {**asked.context, **self._held_to}
        key = self._cache.key(asked.task, registry, self.model.name, asked.strategy, known_too)
        if key is None:
            return await self._runs.run(asked, tell)
        began = time.perf_counter()
        known = await self._cache.get(key)
        looking = time.perf_counter() - began
        if known is not None:
            return replace(known, cached=True, usage=Usage(), timings={"cache": looking})
        result = await self._share(key, asked, tell)
        return replace(result, timings={"cache": looking, **result.timings})

    async def _share(self, key: str, asked: Asked, tell: Tell | None) -> OrchestratorResult:
        """By one run for all who ask the same at once. Of other conversations only what belongs to none is taken."""
        asker = asked.snapshot.conversation_id
        flight = self._flights.find(key, asker)
        if flight is None and (other := self._flights.find_any(key)) is not None:
            landed = await other.join()  # what happens in it is not for this asker's eyes
            if landed.is_for_all:
                return replace(landed.result, shared=True)
            flight = self._flights.find(key, asker)
        if flight is not None:
            return replace((await flight.join(tell)).result, shared=True)
        flight = self._flights.start(key, asker, lambda told: self._run(key, asked, told if tell else None))
        return (await flight.join(tell)).result

    async def _run(self, key: str, asked: Asked, tell: Tell | None) -> _Landed:
        """Answer it, and keep the answer if it would be the same again."""
        result = await self._runs.run(asked, tell)
        seconds = self._cache.seconds_for(result, self.library.engine.registry.snapshot())
        if seconds is not None:
            await self._cache.put(key, result, seconds)
        return _Landed(result, is_for_all=seconds is not None)

    def _finished(self, asked: Asked, result: OrchestratorResult, seconds: float) -> OrchestratorResult:
        """The result with all that is to be said about it, also to the conversation."""
        conversation = asked.snapshot.conversation_id
        self.memory.answer(conversation, asked.turn, result.answer, state=result.state.value, run_id=result.run_id)
        return self._told(replace(result, question=asked.task, conversation_id=conversation), seconds)

    def _told(self, result: OrchestratorResult, seconds: float) -> OrchestratorResult:
        price = self._limits.price if self._limits is not None else None
        result = replace(
            result,
            trace_id=uuid4().hex,
            cost=None if price is None else price(result.usage),
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

    def _note_failure(self, asked: Asked, error: BaseException) -> None:
        cancelled = isinstance(error, asyncio.CancelledError)
        text, state = ("", "cancelled") if cancelled else (str(error), "failed")
        self.memory.answer(asked.snapshot.conversation_id, asked.turn, text, state=state)

    def _have_history_tool(self) -> None:
        """Not before the first question: the library may bring a tool of this name from its files."""
        if HISTORY_TOOL not in self.library.engine.registry:
            self.library.engine.register(history_tool(self.memory))
