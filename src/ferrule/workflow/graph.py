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

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from ferrule.agent.answer import StepResult
from ferrule.agent.budget import RunLimits
from ferrule.core.model import Model
from ferrule.core.permission import PLANNER_PRINCIPAL, CallPolicy, Principal
from ferrule.errors import MissingExtra, SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.approvals import Person
from ferrule.store.escapes import to_storable_text
from ferrule.store.location import make_directory
from ferrule.workflow.plan_runner import PlanRunner, list_problems
from ferrule.workflow.workflow import Workflow

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
    """The context of a graph: the run, its results that are not verified yet, and the stages that the nodes call."""

    def __init__(self, run: PlanRunner, *, shows_state: bool) -> None:
        self.run, self._shows_state = run, shows_state
        self.unverified: list[StepResult] = []

    def state(self) -> PlanState:
        """Return the state of the run, without secrets. Mostly empty without a checkpointer, the only reader."""
        run, results = self.run, self.run.results
        state = PlanState(current_step=len(results))
        if self._shows_state:
            state["task_plan"] = run.redact_plan(run.plan).to_dict()
            state["step_results"] = [result.to_dict() for result in results]
            state["errors"] = list_problems(run.plan, results)
            state["final_answer"] = run.answer
        redacted: PlanState = run.redact(state)
        return redacted

    async def run_planning(self) -> None:
        if not self.run.has_plan:
            await self.run.make_plan()
        if self.run.needs_revision:  # also in a run that was interrupted before it was revised
            await self.run.revise()

    async def run_execution(self) -> None:
        if not self.run.is_done:
            self.unverified = await self.run.advance()

    async def run_verification(self) -> None:
        results, self.unverified = self.unverified, []
        await self.run.verify(results)

    async def run_synthesis(self) -> None:
        if self.run.is_done:  # otherwise a person must reply first
            await self.run.synthesize()


class GraphWorkflow(Workflow):
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

    async def _run_stages(self, run: PlanRunner) -> None:
        thread_id = to_storable_text(run.run.id)
        config = {"configurable": {"thread_id": thread_id}, "recursion_limit": MAX_NODES}
        graph_run = GraphRun(run, shows_state=self._checkpointer is not None)
        await self._graph.ainvoke(PlanState(question=run.redact(run.run.task)), config, context=graph_run)


def build_graph() -> Any:
    """Return the nodes and the edges."""
    try:
        from langgraph.graph import END, START, StateGraph
    except ImportError:
        raise MissingExtra("langgraph", "langgraph") from None

    def node(name: str) -> Any:
        async def run_stage(state: PlanState, runtime: Any) -> PlanState:
            await getattr(runtime.context, name)()
            current: PlanState = runtime.context.state()
            return current

        return run_stage

    # Async, although they await nothing, because LangGraph runs other functions in a thread.
    async def should_verify(state: PlanState, runtime: Any) -> Literal["verification", "execution", "synthesis"]:
        graph_run: GraphRun = runtime.context
        if graph_run.unverified:
            return "verification"
        return "synthesis" if graph_run.run.is_done or graph_run.run.is_blocked else "execution"

    async def should_revise(state: PlanState, runtime: Any) -> Literal["planning", "execution"]:
        return "planning" if runtime.context.run.needs_revision else "execution"

    graph: Any = StateGraph(PlanState, context_schema=GraphRun)
    for name in ("planning", "execution", "verification", "synthesis"):
        graph.add_node(name, node(f"run_{name}"))
    graph.add_edge(START, "planning")
    graph.add_edge("planning", "execution")
    graph.add_conditional_edges("execution", should_verify)
    graph.add_conditional_edges("verification", should_revise)
    graph.add_edge("synthesis", END)
    return graph


# Checkpointers, in SQLite or Postgres. Checkpoints show how far a run is; a run does not need them to continue. So a
# checkpointer whose database is down or was restarted is logged and does not stop a plan.

logger = logging.getLogger("ferrule.workflow")

MAX_CONNECTIONS: Final = 4
CONNECT_TIMEOUT: Final = 10.0
"""Seconds to wait for a connection; then the checkpoint is not written."""


@asynccontextmanager
async def open_checkpointer(url: str) -> AsyncIterator[Any]:
    """Open a checkpointer for `GraphWorkflow`, at `sqlite:///path` or `postgresql://…`. Its tables are created."""
    if url.startswith("sqlite:///"):
        opened = _open_sqlite(Path(url.removeprefix("sqlite:///")))
    elif url.startswith(("postgresql://", "postgres://")):
        opened = _open_postgres(url)
    else:
        raise SetupError(f"There is no checkpointer for {url!r}. Write sqlite:///path or postgresql://….")
    async with opened as saver:
        await saver.setup()
        yield saver


@asynccontextmanager
async def _open_sqlite(path: Path) -> AsyncIterator[Any]:
    try:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    except ImportError:
        raise MissingExtra("langgraph-checkpoint-sqlite", "langgraph") from None
    make_directory(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)  # SQLite gives its other files the mode of this one
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        yield saver


@asynccontextmanager
async def _open_postgres(url: str) -> AsyncIterator[Any]:
    """With a pool that checks each connection before it is used: after a restart of the database it opens new ones."""
    try:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool
    except ImportError:
        raise MissingExtra("langgraph-checkpoint-postgres", "langgraph") from None
    pool: Any = AsyncConnectionPool(
        url,
        open=False,
        min_size=1,
        max_size=MAX_CONNECTIONS,
        timeout=CONNECT_TIMEOUT,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        check=AsyncConnectionPool.check_connection,
    )
    async with pool:
        yield AsyncPostgresSaver(pool)


def log_checkpointer_errors(saver: Any) -> Any:
    """Wrap a checkpointer, so that its failures are logged instead of raised. None stays None."""
    if saver is None:
        return None
    from langgraph.checkpoint.base import BaseCheckpointSaver

    class ErrorLoggingCheckpointer(BaseCheckpointSaver[Any]):
        """Passes everything on; what could not be written is not written."""

        @property
        def config_specs(self) -> Any:
            return saver.config_specs

        def get_next_version(self, current: Any, channel: Any) -> Any:
            return saver.get_next_version(current, channel)

        async def aget_tuple(self, config: Any) -> Any:
            return await _log_failure(saver.aget_tuple(config))

        async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            fallback = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
            return await _log_failure(saver.aput(config, checkpoint, metadata, new_versions)) or fallback

        async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            await _log_failure(saver.aput_writes(config, writes, task_id, task_path))

    return ErrorLoggingCheckpointer(serde=saver.serde)


async def _log_failure(use: Awaitable[Any]) -> Any:
    """Return the result of using a checkpoint, or None if it cannot be used."""
    try:
        return await use
    except Exception as error:
        logger.warning("error=<%s: %s> | a checkpoint could not be used; the run goes on", type(error).__name__, error)
