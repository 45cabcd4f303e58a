"""The entry point for questions."""

from ferrule.memory.conversation import ConversationMemory, HistorySnapshot, Turn
from ferrule.orchestrator.orchestrator import Orchestrator
from ferrule.orchestrator.result import OrchestratorResult

__all__ = ["ConversationMemory", "HistorySnapshot", "Orchestrator", "OrchestratorResult", "Turn"]
