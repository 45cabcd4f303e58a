"""What was called, and what came of it."""

from ferrule.store.artifacts import Artifact, ArtifactStore
from ferrule.store.knowledge import ToolKnowledgeStore
from ferrule.store.record import CallStatistics, Status, ToolCallRecord, ToolCallSummary, ToolStatistics
from ferrule.store.writer import Retention

__all__ = [
    "Artifact",
    "ArtifactStore",
    "CallStatistics",
    "Retention",
    "Status",
    "ToolCallRecord",
    "ToolCallSummary",
    "ToolKnowledgeStore",
    "ToolStatistics",
]
