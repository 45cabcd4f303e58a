"""What a run has experienced, and which calls it must not repeat."""

from ferrule.memory.context import ExecutionContext
from ferrule.memory.failures import CallFailure, FailureClass, FailureClassifier, FailurePolicy
from ferrule.memory.run_memory import RunMemory

__all__ = ["CallFailure", "ExecutionContext", "FailureClass", "FailureClassifier", "FailurePolicy", "RunMemory"]
