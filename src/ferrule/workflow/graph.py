"""The workflow as a graph of LangGraph, with its checkpoints.

    planning ─► execution ─► verification ─► execution …
                    └──────► synthesis ─► end

Execution begins every step that can begin and ends with the next result, so a step starts as soon as what it needs is
there, and there is a checkpoint after every result. A run that was killed goes on from the last one; what was done
after it is known from the records of its calls, and is not done again. Where a person must speak, the graph is
interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from ferrule.agent.answer import AgentState, Approval, ApprovalRequest
from ferrule.agent.approval import ApprovalPolicy
from ferrule.errors import MissingExtra
from ferrule.library import UnifiedToolLibrary
from ferrule.models.model import Model
from ferrule.workflow.conductor import Conductor
from ferrule.workflow.notes import RunNotes
from ferrule.workflow.plan import Plan
from ferrule.workflow.recovery import Records
from ferrule.workflow.results import StepContext, StepResult
from ferrule.workflow.workflow import (
    Clock,
    OnWorkflowEvent,
    PlanMade,
    StepEnded,
    Team,
    WorkflowResult,
    conclude,
    ended,
    in_order,
    new_run_id,
    nobody,
    words_for,
)

STEPS_OF_GRAPH = 1_000
"""More nodes than any plan can need; without it LangGraph stops after 25."""


class PlanState(TypedDict, total=False):
    """What is in a checkpoint."""

    question: str
    history: str
    task_plan: dict[str, Any]
    step_results: dict[str, dict[str, Any]]
    fresh: list[dict[str, Any]]
    """Results that are not verified yet."""
    current_step: int
    """How many steps have their results."""
    errors: list[str]
    final_answer: str


@dataclass(slots=True, kw_only=True)
class _Life:
    """What a run has beside its checkpoints while it is alive."""

    library: UnifiedToolLibrary
    team: Team
    notes: RunNotes
    records: Records
    known_plan: Plan | None
    tell: OnWorkflowEvent
    clock: Clock
    conductor: Conductor | None = None

    def conduct(self, state: PlanState) -> Conductor:
        """The conductor of the run; after a restart, made from the checkpoint."""
        if self.conductor is None:
            results = {key: StepResult.from_dict(one) for key, one in state.get("step_results", {}).items()}
            self.conductor = Conductor(
                Plan.from_dict(state["task_plan"]),
                StepContext(
                    question=state["question"],
                    run_id=self.notes.run_id,
                    results=results,
                    history=state.get("history", ""),
                ),
                library=self.library,
                execution=self.team.execution,
                verification=self.team.verification,
                records=self.records,
            )
        return self.conductor


class GraphWorkflow:
    """Answers questions with a plan, on LangGraph."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        *,
        policy: ApprovalPolicy | None = None,
        tools: Collection[str] | None = None,
    ) -> None:
        """`tools` are the only ones a plan may use."""
        try:
            import langgraph.graph  # noqa: F401
        except ImportError:
            raise MissingExtra("langgraph", "langgraph") from None
        self._library, self._model, self._policy, self._tools = library, model, policy, tools
        self._stack = AsyncExitStack()
        self._graph: Any = None
        self._opening = asyncio.Lock()

    async def aclose(self) -> None:
        """Close the checkpoints."""
        self._graph = None
        await self._stack.aclose()

    async def run(
        self,
        task: str,
        context: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        on_event: OnWorkflowEvent | None = None,
    ) -> WorkflowResult:
        """Answer a question. `context["history"]` is what was said before it, in words."""
        notes = RunNotes(self._library, run_id or new_run_id())
        history = str((context or {}).get("history", ""))
        notes.write("begin", task=task, strategy="plan", workflow="langgraph", history=history)
        begin = PlanState(question=task, history=history)
        return await self._go_on(notes, task, begin, Records(), None, on_event)

    async def resume(
        self,
        run_id: str,
        *,
        approvals: Mapping[str, Approval | bool] | bool | None = None,
        on_event: OnWorkflowEvent | None = None,
    ) -> WorkflowResult:
        """Go on with a run that waits, or that a crash interrupted; what was done is not done again."""
        from langgraph.types import Command

        notes = RunNotes(self._library, run_id)
        entries = await notes.read()
        begin, end = entries[0], entries[-1] if entries[-1]["kind"] == "end" else None
        plan = next((Plan.from_dict(e["plan"]) for e in reversed(entries) if e["kind"] == "plan"), None)
        if end is not None and end["state"] != AgentState.WAITING:
            results = [StepResult.from_dict(e["result"]) for e in entries if e["kind"] == "step"]
            return ended(run_id, begin["task"], plan, results, end)
        records = await Records.of_run(self._library.engine, run_id)
        graph = await self._open()
        state = await graph.aget_state(_config(run_id))
        if not state.next:  # killed before the first checkpoint
            again: Any = PlanState(question=begin["task"], history=begin.get("history", ""))
        elif state.interrupts:
            waiting = [str(one["call_id"]) for one in state.interrupts[0].value]
            words = words_for(waiting, approvals)
            if not words:
                return self._still_waiting(run_id, begin["task"], plan, state)
            again = Command(resume={key: _plain(word) for key, word in words.items()})
        else:
            again = None
        return await self._go_on(notes, begin["task"], again, records, plan, on_event)

    async def _go_on(
        self,
        notes: RunNotes,
        task: str,
        begin: Any,
        records: Records,
        plan: Plan | None,
        on_event: OnWorkflowEvent | None,
    ) -> WorkflowResult:
        life = _Life(
            library=self._library,
            team=await Team.of(self._library, self._model, task, self._policy, self._tools),
            notes=notes,
            records=records,
            known_plan=plan,
            tell=on_event or nobody,
            clock=Clock(),
        )
        graph = await self._open()
        try:
            state = await graph.ainvoke(begin, _config(notes.run_id), context=life)
        finally:
            if life.conductor is not None:
                await life.conductor.stop()
        answer = state.get("final_answer", "")
        return conclude(notes, task, life.conduct(state), answer, team=life.team, clock=life.clock)

    def _still_waiting(self, run_id: str, task: str, plan: Plan | None, state: Any) -> WorkflowResult:
        results = [StepResult.from_dict(one) for one in state.values.get("step_results", {}).values()]
        asked = tuple(ApprovalRequest(**one) for one in state.interrupts[0].value)
        return WorkflowResult(
            run_id=run_id,
            question=task,
            state=AgentState.WAITING,
            plan=plan,
            results=tuple(results),
            approvals=asked,
        )

    async def _open(self) -> Any:
        async with self._opening:
            if self._graph is not None:
                return self._graph
            checkpointer = await self._stack.enter_async_context(_checkpointer(self._library))
            self._graph = build_graph().compile(checkpointer=checkpointer)
        return self._graph


def build_graph() -> Any:
    """The nodes and the edges."""
    from langgraph.graph import END, START, StateGraph

    graph: Any = StateGraph(PlanState, context_schema=_Life)
    graph.add_node("planning", _planning)
    graph.add_node("execution", _execution)
    graph.add_node("verification", _verification)
    graph.add_node("synthesis", _synthesis)
    graph.add_edge(START, "planning")
    graph.add_edge("planning", "execution")
    graph.add_conditional_edges("execution", _should_verify)
    graph.add_edge("verification", "execution")
    graph.add_edge("synthesis", END)
    return graph


async def _planning(state: PlanState, runtime: Any) -> PlanState:
    life: _Life = runtime.context
    plan = life.known_plan
    if plan is None:
        plan = await life.team.planning.decompose_task(state["question"], history=state.get("history", ""))
        life.notes.write("plan", plan=plan.to_dict())  # before anything is done: what is done belongs to this plan
    life.clock.lap("planning")
    life.tell(PlanMade(plan))
    return PlanState(task_plan=plan.to_dict(), step_results={}, fresh=[], current_step=0, errors=list(plan.problems))


async def _execution(state: PlanState, runtime: Any) -> PlanState:
    from langgraph.types import interrupt

    conductor = runtime.context.conduct(state)
    fresh = await conductor.advance()
    if conductor.is_stuck and not fresh:
        asked = [_request(one) for one in conductor.waiting.values()]
        said = interrupt(asked)
        conductor.take_words({step_id: Approval(**word) for step_id, word in said.items()})
        fresh = await conductor.advance()
    return PlanState(fresh=[result.to_dict() for result in fresh], task_plan=conductor.plan.to_dict())


def _should_verify(state: PlanState) -> Literal["verification", "execution", "synthesis"]:
    if state.get("fresh"):
        return "verification"
    return "synthesis" if state["current_step"] >= len(state["task_plan"]["steps"]) else "execution"


async def _verification(state: PlanState, runtime: Any) -> PlanState:
    life: _Life = runtime.context
    conductor, errors = life.conduct(state), list(state.get("errors", ()))
    for said in state["fresh"]:
        verified = await conductor.verify(StepResult.from_dict(said))
        if verified is None:
            continue
        conductor.settle(verified)
        life.notes.write("step", result=verified.to_dict())
        life.tell(StepEnded(verified))
        if verified.verification is not None:
            errors += [f"Step {verified.step_id}: {issue}" for issue in verified.verification.issues]
    results = {key: result.to_dict() for key, result in conductor.context.results.items()}
    return PlanState(
        fresh=[],
        step_results=results,
        current_step=len(results),
        errors=errors,
        task_plan=conductor.plan.to_dict(),
    )


async def _synthesis(state: PlanState, runtime: Any) -> PlanState:
    life: _Life = runtime.context
    conductor = life.conduct(state)
    life.clock.lap("execution")
    answer = await life.team.coordination.synthesize(state["question"], conductor.plan, in_order(conductor))
    life.clock.lap("synthesis")
    return PlanState(final_answer=answer)


@asynccontextmanager
async def _checkpointer(library: UnifiedToolLibrary) -> AsyncIterator[Any]:
    """Where checkpoints are kept: beside the records."""
    location = library.engine.store.location
    if location.kind == "postgresql":
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        url = str(location.database).replace("postgresql+psycopg://", "postgresql://", 1)
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            yield saver
    elif location.kind == "sqlite":
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        path = Path(str(location.database))
        async with AsyncSqliteSaver.from_conn_string(str(path.with_name(f"{path.stem}-graph.db"))) as saver:
            yield saver
    else:
        from langgraph.checkpoint.memory import InMemorySaver

        yield InMemorySaver()


def _config(run_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": run_id}, "recursion_limit": STEPS_OF_GRAPH}


def _request(one: ApprovalRequest) -> dict[str, Any]:
    return {
        "call_id": one.call_id,
        "tool_id": one.tool_id,
        "action": one.action,
        "arguments": one.arguments,
        "reason": one.reason,
    }


def _plain(word: Approval) -> dict[str, Any]:
    return {"allowed": word.allowed, "arguments": word.arguments, "reason": word.reason}
