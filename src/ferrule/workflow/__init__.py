"""Plan, execute, verify, synthesize."""

from ferrule.workflow.coordination import CoordinationAgent
from ferrule.workflow.execution import ExecutionAgent
from ferrule.workflow.graph import GraphWorkflow
from ferrule.workflow.plan import Plan, PlanStep
from ferrule.workflow.planning import PlanningAgent
from ferrule.workflow.results import StepContext, StepResult, Verification
from ferrule.workflow.simple import SimpleWorkflow
from ferrule.workflow.verification import VerificationAgent
from ferrule.workflow.workflow import Workflow, WorkflowResult

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
    "WorkflowResult",
]
