"""The tool-call loop on top of the library."""

from ferrule.agent.agent import Agent
from ferrule.agent.answer import AgentAnswer, AgentState, Plan, PlanStep, StepResult, Verification
from ferrule.agent.budget import RunLimits
from ferrule.policy.approvals import Approval, ApprovalRequest, Person, Question

__all__ = [
    "Agent",
    "AgentAnswer",
    "AgentState",
    "Approval",
    "ApprovalRequest",
    "Person",
    "Plan",
    "PlanStep",
    "Question",
    "RunLimits",
    "StepResult",
    "Verification",
]
