"""The tool-call loop on top of the library."""

from ferrule.agent.agent import Agent
from ferrule.agent.answer import AgentAnswer, AgentState, AgentStep, Approval, ApprovalRequest, Question
from ferrule.agent.approval import ApprovalPolicy, Person
from ferrule.agent.limits import RunLimits

__all__ = [
    "Agent",
    "AgentAnswer",
    "AgentState",
    "AgentStep",
    "Approval",
    "ApprovalPolicy",
    "ApprovalRequest",
    "Person",
    "Question",
    "RunLimits",
]
