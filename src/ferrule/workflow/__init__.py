"""Plan, execute, verify, synthesize."""

from ferrule.agent.answer import Plan, PlanStep, StepResult, Verification
from ferrule.workflow.execution import ExecutionAgent
from ferrule.workflow.graph import GraphWorkflow, open_checkpointer
from ferrule.workflow.planning import PlanningAgent
from ferrule.workflow.results import CoordinationAgent, StepContext
from ferrule.workflow.verification import VerificationAgent
from ferrule.workflow.workflow import SimpleWorkflow, Workflow

__all__ = [
    "CoordinationAgent",
    "ExecutionAgent",
    "GraphWorkflow",
    "Plan",
    "PlanStep",
    "PlanningAgent",
    "SimpleWorkflow",
    "StepContext",
    "StepResult",
    "Verification",
    "VerificationAgent",
    "Workflow",
    "open_checkpointer",
]
