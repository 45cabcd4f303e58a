"""The cluster: workers and tools on the nodes of a Ray cluster (`ferrule[cluster]`)."""

from ferrule.cluster.connection import connect, disconnect
from ferrule.cluster.tools import ClusterExecutor
from ferrule.cluster.workers import RemoteWorker, WorkerGroup, WorkerLost

__all__ = ["ClusterExecutor", "RemoteWorker", "WorkerGroup", "WorkerLost", "connect", "disconnect"]
