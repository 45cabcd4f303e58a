"""What a run has lived through, and what must not be repeated."""

from ferrule.memory.context import ExecutionContext
from ferrule.memory.failure import Failure
from ferrule.memory.failure_class import FailureClass, FailureClassifier, FailurePolicy
from ferrule.memory.run_memory import RunMemory

__all__ = ["ExecutionContext", "Failure", "FailureClass", "FailureClassifier", "FailurePolicy", "RunMemory"]
