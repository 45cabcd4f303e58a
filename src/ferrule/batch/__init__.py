"""Batches: thousands of tasks, each exactly once, with their trajectories."""

from ferrule.batch.cluster import ClusterBackend
from ferrule.batch.directory import BatchDirectory
from ferrule.batch.local import BatchBackend, LocalBackend
from ferrule.batch.runner import Batch, BatchProgress, BatchResult
from ferrule.batch.tasks import BatchTask, read_tasks
from ferrule.batch.waiting_model import WaitingModel

__all__ = [
    "Batch",
    "BatchBackend",
    "BatchDirectory",
    "BatchProgress",
    "BatchResult",
    "BatchTask",
    "ClusterBackend",
    "LocalBackend",
    "WaitingModel",
    "read_tasks",
]
