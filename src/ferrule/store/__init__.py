"""What was called, and what came of it."""

from ferrule.store.artifacts import Artifact, ArtifactStore
from ferrule.store.record import CallStatistics, Status, ToolCallRecord, ToolCallSummary, ToolStatistics
from ferrule.store.retention import DeletionReport, Retention
from ferrule.store.store import ToolKnowledgeStore

__all__ = [
    "Artifact",
    "ArtifactStore",
    "CallStatistics",
    "DeletionReport",
    "Retention",
    "Status",
    "ToolCallRecord",
    "ToolCallSummary",
    "ToolKnowledgeStore",
    "ToolStatistics",
]
