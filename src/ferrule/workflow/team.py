"""Who works on a run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ferrule.agent.approval import ApprovalPolicy
from ferrule.agent.toolbox import Toolbox
from ferrule.library import UnifiedToolLibrary
from ferrule.memory import ExecutionContext, RunMemory
from ferrule.memory.counsel import Counsel
from ferrule.messages import Usage
from ferrule.models.model import Model
from ferrule.workflow.budget import Budget
from ferrule.workflow.conductor import Conductor
from ferrule.workflow.coordination import CoordinationAgent
from ferrule.workflow.execution import ExecutionAgent
from ferrule.workflow.plan import Plan
from ferrule.workflow.planning import PlanningAgent
from ferrule.workflow.recovery import Records
from ferrule.workflow.results import StepContext
from ferrule.workflow.verification import VerificationAgent


@dataclass(slots=True, kw_only=True)
class Team:
    """The four agents of one run, and what they share."""

    planning: PlanningAgent
    execution: ExecutionAgent
    verification: VerificationAgent
    coordination: CoordinationAgent

    @classmethod
    async def of(
        cls,
        library: UnifiedToolLibrary,
        model: Model,
        question: str,
        policy: ApprovalPolicy | None,
        tools: Collection[str] | None,
        toolbox: Toolbox,
    ) -> Team:
        await library.failures.load()
        lived = ExecutionContext(task_description=question)
        memory = RunMemory(adviser=Counsel(lived, library.engine.registry, library.failures), listener=library.failures)
        return cls(
            planning=PlanningAgent(library, model, toolbox=toolbox),
            execution=ExecutionAgent(library, model, policy=policy, memory=memory, tools=tools),
            verification=VerificationAgent(),
            coordination=CoordinationAgent(model),
        )

    def conduct(
        self, plan: Plan, context: StepContext, *, library: UnifiedToolLibrary, budget: Budget, records: Records
    ) -> Conductor:
        return Conductor(
            plan,
            context,
            library=library,
            planning=self.planning,
            execution=self.execution,
            verification=self.verification,
            budget=budget,
            records=records,
        )

    async def answer(self, task: str, conductor: Conductor) -> str:
        """Out of what was found out; where a limit was reached, without asking the model once more."""
        return await self.coordination.synthesize(task, conductor.plan, conductor.in_order, think=conductor.may_think)

    @property
    def usage(self) -> Usage:
        return self.planning.usage + self.execution.usage + self.coordination.usage
