"""Batches: thousands of tasks, each exactly once, with their trajectories."""

from ferrule.batch.backends import BatchBackend, ClusterBackend, LocalBackend
from ferrule.batch.directory import BatchDirectory
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
