"""The entry point for questions."""

from ferrule.memory.conversation import ConversationMemory, HistorySnapshot, Turn
from ferrule.orchestrator.orchestrator import Orchestrator

__all__ = ["ConversationMemory", "HistorySnapshot", "Orchestrator", "Turn"]
