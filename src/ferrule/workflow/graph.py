"""The workflow as a graph of LangGraph, with its checkpoints.

    planning ─► execution ─► verification ─► execution …
       ▲            │              │
       └────────────│──────────────┘ a result is so bad that the rest is planned anew
                    └──────► synthesis ─► end

Execution begins every step that can begin and ends with the next result, so a step starts as soon as what it needs is
there, and there is a checkpoint after every result. A run that was killed goes on from the last one; what was done
after it is known from the records of its calls, and is not done again. Where a person must speak, the graph is
interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from ferrule.agent.answer import AgentState
from ferrule.agent.approval import ApprovalPolicy
from ferrule.agent.limits import RunLimits
from ferrule.errors import MissingExtra
from ferrule.library import UnifiedToolLibrary
from ferrule.models.model import Model
from ferrule.workflow.budget import Budget
from ferrule.workflow.checkpoints import open_checkpoints
from ferrule.workflow.concluding import Clock, conclude, ended
from ferrule.workflow.conductor import Conductor
from ferrule.workflow.execution import Word
from ferrule.workflow.notes import RunNotes
from ferrule.workflow.past import Spent, WaitingRuns, plan_in, results_in, spent_in, words_for
from ferrule.workflow.plan import Plan
from ferrule.workflow.planning import planning_toolbox
from ferrule.workflow.recovery import Records
from ferrule.workflow.results import StepContext, StepResult
from ferrule.workflow.team import Team
from ferrule.workflow.workflow import (
    Answers,
    Approvals,
    OnWorkflowEvent,
    PlanMade,
    StepEnded,
    WorkflowResult,
    new_run_id,
    nobody,
)

STEPS_OF_GRAPH = 1_000
"""More nodes than any plan can need; without it LangGraph stops after 25."""


class PlanState(TypedDict, total=False):
    """What is in a checkpoint. A node gives only what it has changed: all else would be written again."""

    question: str
    history: str
    task_plan: dict[str, Any]
    step_results: dict[str, dict[str, Any]]
    fresh: list[dict[str, Any]]
    """Results that are not verified yet."""
    current_step: int
    """How many steps have their results."""
    is_bad: bool
    """A result is so bad that the rest is to be planned anew."""
    errors: list[str]
    final_answer: str


@dataclass(slots=True, kw_only=True)
class _Life:
    """What a run has beside its checkpoints while it is alive."""

    library: UnifiedToolLibrary
    team: Team
    budget: Budget
    notes: RunNotes
    records: Records
    known_plan: Plan | None
    tell: OnWorkflowEvent
    clock: Clock
    words: Mapping[str, Word] = field(default_factory=dict)
    """What people have said to what the run asked them."""
    before: tuple[Plan, dict[str, StepResult]] | None = None
    """The plan and the results with their secrets, if the run has waited in this process."""
    conductor: Conductor | None = None
    kept_plan: Plan | None = None
    """The plan as the last checkpoint has it."""

    def conduct(self, state: PlanState) -> Conductor:
        """The conductor of the run; after a restart, made from the checkpoint."""
        if self.conductor is None:
            said = state.get("step_results", {}).items() if self.before is None else ()
            kept = {key: StepResult.from_dict(one) for key, one in said}
            self.kept_plan, results = self.before or (Plan.from_dict(state["task_plan"]), kept)
            self.conductor = self.team.conduct(
                self.kept_plan,
                StepContext(
                    question=state["question"],
                    run_id=self.notes.run_id,
                    results=results,
                    history=state.get("history", ""),
                ),
                library=self.library,
                budget=self.budget,
                records=self.records,
            )
            self.conductor.take_words(self.words)
            self.tell(PlanMade(self.kept_plan, tuple(results.values())))
        return self.conductor

    def changed_plan(self) -> PlanState:
        """The plan, if it is another than that of the last checkpoint."""
        if self.conductor is None or self.conductor.plan is self.kept_plan:
            return PlanState()
        self.kept_plan = self.conductor.plan
        return PlanState(task_plan=self.kept_plan.to_dict())


class GraphWorkflow:
    """Answers questions with a plan, on LangGraph."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        *,
        policy: ApprovalPolicy | None = None,
        tools: Collection[str] | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        """`tools` are the only ones a plan may use; of `limits`, turns say nothing about plans."""
        try:
            import langgraph.graph  # noqa: F401
        except ImportError:
            raise MissingExtra("langgraph", "langgraph") from None
        self._library, self._model, self._policy, self._tools = library, model, policy, tools
        self._limits, self._toolbox = limits, planning_toolbox(library, tools)
        self._waiting, self._alive = WaitingRuns(), set[RunNotes]()
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
        return await self._go_on(notes, task, begin, Records(), None, on_event, Spent(), {})

    async def resume(
        self,
        run_id: str,
        answer: Answers = None,
        *,
        approvals: Approvals = None,
        on_event: OnWorkflowEvent | None = None,
    ) -> WorkflowResult:
        """Go on with a run that waits, or that a crash interrupted; what was done is not done again."""
        notes = RunNotes(self._library, run_id)
        entries = await notes.read()
        begin, end = entries[0], entries[-1] if entries[-1]["kind"] == "end" else None
        plan = plan_in(entries)
        if end is not None and end["state"] != AgentState.WAITING:
            return ended(run_id, begin["task"], plan, results_in(entries), end)
        records = await Records.of_run(self._library.engine, run_id)
        graph = await self._open()
        state = await graph.aget_state(_config(run_id))
        # Killed before the first checkpoint, it begins anew; else it goes on where it was.
        again = None if state.values else PlanState(question=begin["task"], history=begin.get("history", ""))
        # By hand and not as LangGraph's `resume`, which is lost if something else has to be done first.
        words = words_for(end or {}, answer, approvals)
        return await self._go_on(notes, begin["task"], again, records, plan, on_event, spent_in(entries), words)

    async def _go_on(
        self,
        notes: RunNotes,
        task: str,
        begin: Any,
        records: Records,
        plan: Plan | None,
        on_event: OnWorkflowEvent | None,
        spent: Spent,
        words: Mapping[str, Word],
    ) -> WorkflowResult:
        team = await Team.of(self._library, self._model, task, self._policy, self._tools, self._toolbox)
        life = _Life(
            library=self._library,
            team=team,
            budget=spent.budget(self._limits, team),
            notes=notes,
            records=records,
            known_plan=plan,
            tell=on_event or nobody,
            clock=Clock(),
            words=words,
            before=self._waiting.take(notes.run_id),
        )
        if life.before is not None:
            notes.learn(life.before[0].to_dict())
        notes.watch(begin)
        graph = await self._open()
        self._alive.add(notes)
        try:
            state = await graph.ainvoke(begin, _config(notes.run_id), context=life)
        finally:
            self._alive.discard(notes)
            if life.conductor is not None:
                await life.conductor.stop()
        if "final_answer" not in state:
            life.clock.lap("execution")  # else it is told when there is an answer
        answer = state.get("final_answer", "")
        done = conclude(notes, task, life.conduct(state), answer, team=life.team, clock=life.clock)
        if done.state is AgentState.WAITING:
            self._waiting.keep(notes.run_id, life.conduct(state))
        else:
            await graph.checkpointer.adelete_thread(notes.run_id)  # each has all results in it, and none is read again
        return done

    async def _open(self) -> Any:
        async with self._opening:
            if self._graph is not None:
                return self._graph
            checkpointer = await self._stack.enter_async_context(
                open_checkpoints(self._library.engine.store.location, self._without_secrets)
            )
            self._graph = build_graph().compile(checkpointer=checkpointer)
        return self._graph

    def _without_secrets(self, value: Any) -> Any:
        """What may be in a checkpoint: as much as may be in notes."""
        suspected = [notes for notes in self._alive if notes.may_hold_secrets]
        for notes in suspected:
            value = notes.without_secrets(value)
        return self._library.engine.store.redaction.clean(value) if suspected else value


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
    graph.add_conditional_edges("verification", _should_revise)
    graph.add_edge("synthesis", END)
    return graph


async def _planning(state: PlanState, runtime: Any) -> PlanState:
    life: _Life = runtime.context
    if "task_plan" in state:
        return await _planning_anew(state, life)
    plan = life.known_plan
    if plan is None:
        plan = await life.team.planning.decompose_task(state["question"], history=state.get("history", ""))
        life.notes.write("plan", plan=plan.to_dict())  # before anything is done: what is done belongs to this plan
    life.clock.lap("planning")
    life.notes.watch(plan.to_dict())
    return PlanState(task_plan=plan.to_dict(), step_results={}, fresh=[], current_step=0, errors=list(plan.problems))


async def _planning_anew(state: PlanState, life: _Life) -> PlanState:
    conductor = life.conduct(state)
    known = life.known_plan
    if known is not None and len(known.revised_for) > len(conductor.plan.revised_for):
        conductor.plan = known  # it was planned anew already, and then killed
    else:
        await conductor.revise()
        life.notes.write("plan", plan=conductor.plan.to_dict())
    life.notes.watch(conductor.plan.to_dict())
    life.tell(PlanMade(conductor.plan))
    return life.changed_plan()


async def _execution(state: PlanState, runtime: Any) -> PlanState:
    from langgraph.types import interrupt

    life: _Life = runtime.context
    conductor = life.conduct(state)
    fresh = await conductor.advance()
    if conductor.is_stuck and not fresh:
        interrupt(list(conductor.waiting))
    found = [result.to_dict() for result in fresh]
    life.notes.watch(found)
    return PlanState(fresh=found) | life.changed_plan()


async def _should_verify(state: PlanState) -> Literal["verification", "execution", "synthesis"]:
    # Async, though it waits for nothing: LangGraph takes other functions to a thread and back.
    if state.get("fresh"):
        return "verification"
    return "synthesis" if state["current_step"] >= len(state["task_plan"]["steps"]) else "execution"


async def _should_revise(state: PlanState) -> Literal["planning", "execution"]:
    return "planning" if state["is_bad"] else "execution"


async def _verification(state: PlanState, runtime: Any) -> PlanState:
    life: _Life = runtime.context
    conductor, known, errors = life.conduct(state), dict(state["step_results"]), list(state["errors"])
    for said in state["fresh"]:
        verified = await conductor.verify(StepResult.from_dict(said))
        if verified is None:
            continue
        conductor.settle(verified)
        known[str(verified.step_id)] = verified.to_dict()
        life.notes.write("step", result=known[str(verified.step_id)])
        life.tell(StepEnded(verified))
        if verified.verification is not None:
            errors += [f"Step {verified.step_id}: {issue}" for issue in verified.verification.issues]
    results = {step_id: known[step_id] for step_id in conductor.context.results}
    done = PlanState(fresh=[], step_results=results, current_step=len(results), is_bad=conductor.needs_revision)
    return done | (PlanState(errors=errors) if errors != state["errors"] else PlanState()) | life.changed_plan()


async def _synthesis(state: PlanState, runtime: Any) -> PlanState:
    life: _Life = runtime.context
    conductor = life.conduct(state)
    life.clock.lap("execution")
    answer = await life.team.answer(state["question"], conductor)
    life.clock.lap("synthesis")
    life.notes.watch(answer)
    return PlanState(final_answer=answer)


def _config(run_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": run_id}, "recursion_limit": STEPS_OF_GRAPH}
