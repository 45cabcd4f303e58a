"""The workflow as a LangGraph graph. Its nodes call the same stages as `SimpleWorkflow`.

    planning ─► execution ─► verification ─► execution …
       ▲            │              │
       └────────────│──────────────┘ a bad result: the rest is planned again
                    └──────► synthesis ─► end

The execution node starts every step that is ready and returns when the next results are available. The stages write
their results into the store, and a resumed run continues from there: the graph starts again at `planning`, which finds
the existing plan. The state of the graph only shows how far a run is. A checkpointer is not needed, but allows watching
runs with LangGraph's tools.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, TypedDict

from ferrule.agent.budget import RunLimits
from ferrule.core.model import Model
from ferrule.core.permission import PLANNER_PRINCIPAL, CallPolicy, Principal
from ferrule.errors import MissingExtra
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.approvals import Person
from ferrule.store.escapes import to_storable_text
from ferrule.workflow.checkpoints import log_checkpointer_errors
from ferrule.workflow.results import StepResult
from ferrule.workflow.workflow import PlanWorkflow, WorkflowRun

MAX_NODES = 1_000
"""More nodes than any plan can need; LangGraph's default stops after 25."""


class PlanState(TypedDict, total=False):
    """The state of the graph."""

    question: str
    task_plan: dict[str, Any]
    step_results: list[dict[str, Any]]
    current_step: int
    """How many steps have results."""
    errors: list[str]
    final_answer: str


class GraphRun:
    """The context of a graph: the run, and its results that are not verified yet."""

    def __init__(self, run: WorkflowRun, *, shows_state: bool) -> None:
        self.run, self._shows_state = run, shows_state
        self.unverified: list[StepResult] = []

    def state(self) -> PlanState:
        """The state of the run, without secrets. Mostly empty without a checkpointer, because nothing else reads it."""
        runner, secrets = self.run.runner, self.run.secrets
        if not self._shows_state:
            return PlanState(current_step=len(runner.context.results))
        issues = [
            f"Step {result.step_id}: {issue}"
            for result in runner.results
            if result.verification is not None
            for issue in result.verification.issues
        ]
        state = PlanState(
            task_plan=secrets.redact_plan_dict(runner.plan),
            step_results=[result.to_dict() for result in runner.results],
            current_step=len(runner.context.results),
            errors=[*runner.plan.problems, *issues],
            final_answer=self.run.answer,
        )
        redacted: PlanState = secrets.redact(state)
        return redacted


class GraphWorkflow(PlanWorkflow):
    """Answers questions with a plan, on LangGraph."""

    kind = "langgraph"

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        *,
        policy: CallPolicy | None = None,
        tools: Collection[str] | None = None,
        limits: RunLimits | None = None,
        principal: Principal = PLANNER_PRINCIPAL,
        person: Person | None = None,
        checkpointer: Any = None,
    ) -> None:
        """`checkpointer` is a LangGraph checkpointer, such as `open_checkpointer` gives. It receives the state after
        each node, under the run's id.
        """
        super().__init__(library, model, policy=policy, tools=tools, limits=limits, principal=principal, person=person)
        self._checkpointer = checkpointer
        self._graph = build_graph().compile(checkpointer=log_checkpointer_errors(checkpointer))

    async def _run_stages(self, run: WorkflowRun) -> None:
        thread_id = to_storable_text(run.run.id)
        config = {"configurable": {"thread_id": thread_id}, "recursion_limit": MAX_NODES}
        graph_run = GraphRun(run, shows_state=self._checkpointer is not None)
        question = run.secrets.redact(run.run.task)
        await self._graph.ainvoke(PlanState(question=question), config, context=graph_run)


def build_graph() -> Any:
    """The nodes and the edges."""
    try:
        from langgraph.graph import END, START, StateGraph
    except ImportError:
        raise MissingExtra("langgraph", "langgraph") from None

    graph: Any = StateGraph(PlanState, context_schema=GraphRun)
    graph.add_node("planning", _run_planning)
    graph.add_node("execution", _run_execution)
    graph.add_node("verification", _run_verification)
    graph.add_node("synthesis", _run_synthesis)
    graph.add_edge(START, "planning")
    graph.add_edge("planning", "execution")
    graph.add_conditional_edges("execution", _should_verify)
    graph.add_conditional_edges("verification", _should_revise)
    graph.add_edge("synthesis", END)
    return graph


# The nodes. All are async, even those that await nothing, because LangGraph runs other functions in a thread.


async def _run_planning(state: PlanState, runtime: Any) -> PlanState:
    graph_run: GraphRun = runtime.context
    if not graph_run.run.has_plan:
        await graph_run.run.plan()
    if graph_run.run.runner.needs_revision:  # also in a run that was interrupted before it was revised
        await graph_run.run.revise()
    return graph_run.state()


async def _run_execution(state: PlanState, runtime: Any) -> PlanState:
    graph_run: GraphRun = runtime.context
    if not graph_run.run.runner.is_done:
        graph_run.unverified = await graph_run.run.execute()
    return graph_run.state()


async def _should_verify(state: PlanState, runtime: Any) -> Literal["verification", "execution", "synthesis"]:
    graph_run: GraphRun = runtime.context
    runner = graph_run.run.runner
    if graph_run.unverified:
        return "verification"
    return "synthesis" if runner.is_done or runner.is_blocked else "execution"


async def _run_verification(state: PlanState, runtime: Any) -> PlanState:
    graph_run: GraphRun = runtime.context
    results, graph_run.unverified = graph_run.unverified, []
    await graph_run.run.verify(results)
    return graph_run.state()


async def _should_revise(state: PlanState, runtime: Any) -> Literal["planning", "execution"]:
    graph_run: GraphRun = runtime.context
    return "planning" if graph_run.run.runner.needs_revision else "execution"


async def _run_synthesis(state: PlanState, runtime: Any) -> PlanState:
    graph_run: GraphRun = runtime.context
    if graph_run.run.runner.is_done:  # otherwise a person must reply first
        await graph_run.run.synthesize()
    return graph_run.state()
