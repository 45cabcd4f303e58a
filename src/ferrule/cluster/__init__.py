"""The cluster: workers and tools on the nodes of a Ray cluster (`ferrule[cluster]`)."""

from ferrule.cluster.connection import connect, disconnect
from ferrule.cluster.group import WorkerGroup
from ferrule.cluster.remote_worker import RemoteWorker, WorkerLost
from ferrule.cluster.tools import ClusterExecutor

__all__ = ["ClusterExecutor", "RemoteWorker", "WorkerGroup", "WorkerLost", "connect", "disconnect"]
