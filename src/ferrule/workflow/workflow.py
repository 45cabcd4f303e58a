"""Answering a question with a plan: plan, execute, verify, synthesize.

`PlanRunner` has these stages. `SimpleWorkflow` calls the stages in a loop;
`ferrule.workflow.graph` calls the same stages from the nodes of a LangGraph graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from ferrule.agent.answer import AgentAnswer, AgentState, OnEvent
from ferrule.agent.budget import BudgetedModel, RunBudget, RunLimits
from ferrule.agent.calls import Answers, ApprovalDecisions, PausedRuns, RunRequests, require_question
from ferrule.agent.run import Run, lock_run
from ferrule.core.messages import user_message
from ferrule.core.model import Model
from ferrule.core.permission import PLANNER_PRINCIPAL, CallPolicy, Principal
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.approvals import Person, check_person
from ferrule.workflow.execution import ExecutionAgent
from ferrule.workflow.plan_runner import PlanRunner, answer_of_plan, makes_call
from ferrule.workflow.planning import PlanningAgent, make_planning_toolbox
from ferrule.workflow.results import CoordinationAgent


class Workflow:
    """Answers questions with a plan. Subclasses decide how the stages of a run are called."""

    kind: ClassVar[str]

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        *,
        policy: CallPolicy | None = None,
        principal: Principal = PLANNER_PRINCIPAL,
        tools: Collection[str] | None = None,
        limits: RunLimits | None = None,
        person: Person | None = None,
    ) -> None:
        """`tools` restricts plans to these tools. `limits` apply to planning, to all steps and to the answer, except
        the limit on turns. Without a `person`, a run that needs an answer or an approval waits.
        """
        self._library, self._model, self._policy, self._limits = library, model, policy, limits
        self._person = check_person(person)
        principal = library.with_tenant(principal)
        self._principal = principal if tools is None else principal.restricted_to(tools)
        self._toolbox = make_planning_toolbox(library, self._principal, policy)
        self._paused = PausedRuns()

    async def run(
        self,
        task: str,
        context: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        on_event: OnEvent | None = None,
        budget: RunBudget | None = None,
        requires_plan: bool = False,
    ) -> AgentAnswer[str]:
        """Answer a question. `context["history"]` is the conversation before it, as text, and `context["questions"]`
        what the user has written in it.

        `budget` is given by a caller who has used part of the limits for this question already. A question for which
        the model writes no plan is one step, or NoPlan if the caller `requires_plan`.
        """
        run = Run(task, self._library.engine.store, run_id)
        async with lock_run(self._library.engine.store, run.id) as lock:
            if run_id is not None:
                await run.require_new()
            context = context or {}
            messages = [user_message(text) for text in (*context.get("questions", ()), task)]
            run.begin(messages, workflow=self.kind, history=str(context.get("history", "")))
            budget = budget or RunBudget(self._limits)
            result = await self._continue(run, budget, on_event, requires_plan=requires_plan)
            lock.release_in_background = result.state is not AgentState.WAITING  # nobody continues it
            return result

    async def resume(
        self,
        run_id: str,
        answer: Answers = None,
        *,
        approvals: ApprovalDecisions = None,
        on_event: OnEvent | None = None,
    ) -> AgentAnswer[str]:
        """Continue a run that is waiting or was interrupted by a crash. No step is executed twice."""
        engine = self._library.engine
        async with lock_run(engine.store, run_id):
            run = await Run.load(run_id, engine.store)
            require_question(run, answer)
            if run.state in (AgentState.FINISHED, AgentState.STOPPED):
                return answer_of_plan(run, (await engine.get_call_summary(run.id)).to_brief(), {})
            budget = RunBudget(
                self._limits,
                usage=run.usage,
                calls=sum(makes_call(step) and not step.skipped for step in run.steps),
                seconds=run.seconds,
                run_costs=run.costs,
            )
            run.set_running()
            return await self._continue(run, budget, on_event, answer, approvals, is_resumed=True)

    async def _continue(
        self,
        stored: Run,
        budget: RunBudget,
        on_event: OnEvent | None,
        answer: Answers = None,
        approvals: ApprovalDecisions = None,
        *,
        is_resumed: bool = False,
        requires_plan: bool = False,
    ) -> AgentAnswer[str]:
        engine = self._library.engine
        events = budget.attach(engine, self._principal, stored.id)
        stored.budget, stored.costs = budget, budget.run_costs
        plan, results = self._paused.pop(stored) or (stored.plan, {step.id: step for step in stored.steps})
        library, failing_model = self._library, BudgetedModel(self._model, budget)
        model = BudgetedModel(self._model, budget, asks_for_more=True)
        permitted = self._toolbox.permissions.select_tools(engine.registry.snapshot()).values()
        stored.context.available_tools = [tool.spec for tool in permitted]
        memory = await library.create_run_memory(stored.context, permissions=self._toolbox.permissions)
        execution = ExecutionAgent(
            library,
            model,
            policy=self._policy,
            principal=self._principal,
            memory=memory,
            failing_model=failing_model,
        )
        requests = RunRequests(stored, engine, budget, self._person)
        run = PlanRunner(
            stored,
            library,
            planning=PlanningAgent(library, model, toolbox=self._toolbox),
            execution=execution,
            coordination=CoordinationAgent(model),
            plan=plan,
            results=results,
            budget=budget,
            requests=requests,
            on_event=on_event,
            events=events,
            requires_plan=requires_plan,
        )
        if is_resumed:
            await execution.calls_of(stored.id, stored.task).restore(stored)
            run.apply_replies(*await requests.match_replies(answer, approvals))
        try:
            await self._run_stages(run)
            while not run.is_done and await run.ask_person():
                await self._run_stages(run)
        except BaseException as error:
            run.interrupt(error)
            raise
        finally:
            await run.stop()
        result = await run.finish()
        if not run.is_done and run.plan.steps:
            self._paused.add(stored, (run.plan, run.context.results))
        return result

    async def _run_stages(self, run: PlanRunner) -> None:
        """Call the stages of a run until it has an answer or waits for a person."""
        raise NotImplementedError


class SimpleWorkflow(Workflow):
    """Plan, then execute and verify until all steps have results, then synthesize."""

    kind = "simple"

    async def _run_stages(self, run: PlanRunner) -> None:
        if not run.has_plan:
            await run.make_plan()
        while True:
            if run.needs_revision:
                await run.revise()
            if run.is_done:
                break
            results = await run.advance()
            if not results and run.is_blocked:
                return
            await run.verify(results)
        await run.synthesize()
